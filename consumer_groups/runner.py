# SPDX-License-Identifier: Apache-2.0
"""The loop of a service: advance the store, receive, call a handler, acknowledge.

A message is acknowledged when its handler returns. It is retried when the handler raises, and when
the disk refuses the acknowledgement it is received again after its invisible time.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TypeVar

import attrs

from consumer_groups.group import DEFAULT_INVISIBLE_MS, ConsumerGroup
from consumer_groups.groups import consumer_group, groups_of
from consumer_groups.received import Received, check_receivable
from consumer_groups.stores import GroupStore
from message_store.base.clock import Clock, ManualClock
from message_store.base.errors import DelayStoreError, StoreClosedError

_LOG = logging.getLogger(__name__)

Handler = Callable[[Received], object]
"""Works on one message. Returning acknowledges it; an exception is a retry."""

Result = TypeVar("Result")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@attrs.define
class Worked:
    """What a loop did: messages whose handler returned, and messages whose handler raised."""

    handled: int = 0
    retried: int = 0


def _never() -> bool:
    return False


@attrs.frozen
class Until:
    """The ``stop`` of a loop that ends when the clock is past ``until_ms``, or when ``is_over``
    says so. Under a clock by hand such a loop leaps: until then nobody else moves the time.
    """

    clock: Clock
    until_ms: int | None
    is_over: Callable[[], bool] = _never

    def __call__(self) -> bool:
        """Whether the loop is over."""
        is_late = self.until_ms is not None and self.clock.now_ms() > self.until_ms
        return is_late or self.is_over()


def run_consumers(
    store: GroupStore,
    handlers: Mapping[tuple[str, str | ConsumerGroup], Handler],
    *,
    stop: Callable[[], bool] = _never,
    threads: int = 0,
    max_messages: int = 32,
    invisible_ms: int = DEFAULT_INVISIBLE_MS,
    tags: str | None = None,
    poll_ms: int = 100,
    flush_every_ms: int | None = 1_000,
) -> Worked:
    """Let each handler work on the messages of its topic and group, until told to stop.

    ``handlers`` is by (topic, group); a group is its name, or a ``ConsumerGroup`` with settings.
    ``tags`` is the filter of all of them. SIGINT and SIGTERM end the loop when the messages in hand
    are done, and so does ``stop``, which is asked before each round and each message. With
    ``threads`` so many handlers run at once, and the calling thread only advances the store. The
    store is flushed every ``flush_every_ms``, and at the end.

    A handler that raises never ends the loop. Neither does a disk that refuses: what it refused is
    tried again. Raises StoreClosedError when the store is closed, and TargetError when a failed
    write left it in doubt, so that it has to be opened again; no message is lost then either.
    Raises TypeError for handlers that are not by (topic, group), or cannot be called: each message
    would be retried. Raises BadFieldError for a topic that the engine keeps for itself.
    """
    for key, handler in handlers.items():
        if not (isinstance(key, tuple) and len(key) == 2 and callable(handler)):
            raise TypeError(
                f"a handler is a function by (topic, group), not {handler!r} by {key!r}"
            )
        check_receivable(key[0])
    groups = [
        (topic, consumer_group(store, name) if isinstance(name, str) else name, handler)
        for (topic, name), handler in handlers.items()
    ]
    with _stopping_signals() as signalled:
        loop = _Loop(
            store, groups, lambda: signalled.is_set() or stop(), max_messages, invisible_ms, tags
        )
        if threads:
            loop.run_threads(threads, poll_ms, flush_every_ms)
        else:
            if isinstance(stop, Until) and isinstance(store.clock, ManualClock):
                loop.until_ms = stop.until_ms
            loop.run(loop.work, poll_ms, flush_every_ms)
    store.flush()
    return loop.worked


@contextmanager
def _stopping_signals() -> Iterator[threading.Event]:
    """An event that the signals set; only the main thread can ask for them."""
    signalled = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield signalled
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        signalled.set()

    before = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@attrs.define(eq=False)
class _Loop:
    """One call of ``run_consumers``."""

    store: GroupStore
    groups: list[tuple[str, ConsumerGroup, Handler]]
    stop: Callable[[], bool]
    max_messages: int
    invisible_ms: int
    tags: str | None
    worked: Worked = attrs.field(factory=Worked)
    until_ms: int | None = None
    _looked_at: int = -1
    _was_refused: bool = False
    _counting: threading.Lock = attrs.field(factory=threading.Lock)
    _failure: BaseException | None = None

    def run(self, work: Callable[[], bool], poll_ms: int, flush_every_ms: int | None) -> None:
        """Advance, and let ``work`` do a round; sleep where it had nothing to do."""
        clock = self.store.clock
        flushed_ms = clock.now_ms()
        while not self.stop() and self._failure is None:
            self._was_refused = False
            deliveries = self._try("advancing", partial(self.store.advance, clock.now_ms()))
            if deliveries:
                _LOG.info("delivered", extra={"facts": {"count": len(deliveries)}})
            had_work = work()
            since_ms = clock.now_ms() - flushed_ms
            if flush_every_ms is not None and not 0 <= since_ms < flush_every_ms:
                flushed_ms += since_ms
                self._try("flushing", self.store.flush)
            if not had_work:
                clock.sleep_ms(poll_ms if self.until_ms is None else self._leap_ms(poll_ms))

    def _leap_ms(self, poll_ms: int) -> int:
        """How long nothing can happen: until a message is due, or can be received again. The end is
        a moment of its own. What was refused, and what is overdue, is tried again as ever.
        """
        assert self.until_ms is not None
        now_ms, table = self.store.clock.now_ms(), groups_of(self.store).table
        with self.store.lock:
            before, self._looked_at = self._looked_at, table.looked_at
            times_ms = [self.store.next_due_ms(), table.next_visible_ms()]
        if self._looked_at != before:  # a filter skipped messages, and there may be more
            return 0
        known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
        if self._was_refused or any(time_ms <= now_ms for time_ms in known_ms):
            return poll_ms
        end_ms = self.until_ms if now_ms < self.until_ms else now_ms + 1
        return min([*known_ms, end_ms]) - now_ms

    def run_threads(self, count: int, poll_ms: int, flush_every_ms: int | None) -> None:
        """The same, with the work in threads of its own."""
        is_over = threading.Event()
        workers = [
            threading.Thread(target=self._work_until, args=(is_over, poll_ms)) for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        try:
            self.run(lambda: False, poll_ms, flush_every_ms)
        finally:
            is_over.set()
            for worker in workers:
                worker.join()
        if self._failure is not None:
            raise self._failure

    def _work_until(self, is_over: threading.Event, poll_ms: int) -> None:
        try:
            while not is_over.is_set() and not self.stop():
                if not self.work():
                    is_over.wait(poll_ms / 1000)
        except BaseException as error:
            self._failure = error

    def work(self) -> bool:
        """Receive and handle once for each handler; whether there was anything."""
        had_work = False
        for topic, group, handler in self.groups:
            receive = partial(group.receive, topic, self.max_messages, self.invisible_ms, self.tags)
            received = self._try("receiving", receive) or []
            for message in received:
                if self.stop():
                    return True
                is_ours = self.store.clock.now_ms() < message.visible_ms
                if is_ours and group.is_current(message):  # else another has it, or will
                    self._handle(group, handler, message)
            had_work |= bool(received)
        return had_work

    def _handle(self, group: ConsumerGroup, handler: Handler, message: Received) -> None:
        try:
            handler(message)
        except Exception:
            what = f"{message.topic}, {group.name}, {message.unique_key}"
            _LOG.warning("%s: the handler failed; the message is retried", what, exc_info=True)
            self._try("retrying", partial(group.retry, message))
            self._count(retried=1)
            self._log("retried", group, message)
        else:
            self._try("acknowledging", partial(group.ack, message))
            self._count(handled=1)
            self._log("acknowledged", group, message)

    def _log(self, event: str, group: ConsumerGroup, message: Received) -> None:
        if _LOG.isEnabledFor(logging.INFO):
            facts = {"topic": message.topic, "group": group.name, "retries": message.retries}
            facts |= {"unique_key": message.unique_key}
            _LOG.info(event, extra={"facts": facts})

    def _count(self, *, handled: int = 0, retried: int = 0) -> None:
        with self._counting:
            self.worked.handled += handled
            self.worked.retried += retried

    def _try(self, what: str, call: Callable[[], Result]) -> Result | None:
        """What ``call`` returns, or None where the disk or the store refuses it for now."""
        try:
            return call()
        except StoreClosedError:
            raise
        except (DelayStoreError, OSError) as error:
            live = self.store.live
            if live is not None and live.log.is_broken:
                raise
            self._was_refused = True
            _LOG.warning("%s failed and is tried again: %s", what, error)
            return None
