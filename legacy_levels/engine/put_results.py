# SPDX-License-Identifier: Apache-2.0
"""Asynchronous delivery of one level as brokers do it: many under way, settled in order.

A delivery is under way from the moment it is started until all before it are settled, because a
level's offset may only move past what is done. One that failed is sent again, at growing distances
and without end; meanwhile the level starts nothing new once it has failed often enough
(docs/FORMAT.md, delivery of a level). Deterministic: time and outcomes come from outside.
"""

import enum
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from legacy_levels.engine.rules import AsyncRules

_WAIT_STEP_MS = 100
_LONGEST_WAIT_MS = 60_000


class PutState(enum.Enum):
    """Where one delivery stands."""

    RUNNING = "running"
    SUCCESS = "success"
    EXCEPTION = "exception"
    SKIP = "skip"


class Resent(enum.Enum):
    """What came of sending one again."""

    STORED = "stored"
    FAILED = "failed"
    MISSING = "missing"


@attrs.define
class AsyncPut:
    """One delivery under way, by the queue offset of its entry."""

    queue_offset: int
    state: PutState = PutState.RUNNING
    resend_count: int = 0
    next_try_ms: int = 0


@attrs.frozen
class Settled:
    """What left the queue of deliveries: stored ones, and given-up ones, by queue offset."""

    stored: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()


class AsyncLevel:
    """The deliveries of one level that are under way, oldest first.

    ``unsaved_skip`` is the first that was given up since one was stored: giving up saves no offset.
    """

    def __init__(self, rules: AsyncRules, *, is_4_9: bool = False) -> None:
        self._rules = rules
        first_wait = 0 if is_4_9 else 1
        self._first_wait = first_wait if rules.first_wait is None else rules.first_wait
        self._puts: deque[AsyncPut] = deque()
        self.unsaved_skip: int | None = None

    def __len__(self) -> int:
        return len(self._puts)

    @property
    def puts(self) -> Sequence[AsyncPut]:
        """All under way, oldest first."""
        return tuple(self._puts)

    @property
    def is_blocked(self) -> bool:
        """Whether the oldest one has failed so often that nothing new is started."""
        return bool(self._puts) and self._puts[0].resend_count > self._rules.blocked_after

    @property
    def room(self) -> int:
        """How many more may be started; a level is refused when *more* than the limit are."""
        return 0 if self.is_blocked else max(0, self._rules.max_pending + 1 - len(self._puts))

    @property
    def next_try_ms(self) -> int | None:
        """When the oldest one is sent again; None when none waits for that."""
        if self._puts and self._puts[0].state is PutState.EXCEPTION:
            return self._puts[0].next_try_ms
        return None

    def start(self, queue_offsets: Sequence[int]) -> list[AsyncPut]:
        """These deliveries are under way now."""
        started = [AsyncPut(queue_offset) for queue_offset in queue_offsets]
        self._puts.extend(started)
        return started

    def finish(self, put: AsyncPut, *, is_stored: bool, now_ms: int) -> None:
        """One came to its end."""
        put.state = PutState.SUCCESS if is_stored else PutState.EXCEPTION
        if not is_stored:
            put.next_try_ms = now_ms + self._wait_ms(put)

    def forget(self, queue_offset: int) -> None:
        """One is not to be delivered any more: its message was taken back."""
        self._puts = deque(put for put in self._puts if put.queue_offset != queue_offset)

    def settle(self, now_ms: int, resend: Callable[[int], Resent]) -> Settled:
        """Let what is done leave from the front; what has failed and is due there is sent again."""
        stored: list[int] = []
        skipped: list[int] = []
        while self._puts:
            head = self._puts[0]
            if head.state is PutState.EXCEPTION and head.next_try_ms <= now_ms:
                self._send_again(head, now_ms, resend)
            if head.state is PutState.SUCCESS:
                stored.append(head.queue_offset)
                self.unsaved_skip = None
            elif head.state is PutState.SKIP:
                skipped.append(head.queue_offset)
                if self.unsaved_skip is None:
                    self.unsaved_skip = head.queue_offset
            elif head.state is PutState.RUNNING or head.next_try_ms > now_ms:
                break
            else:
                continue
            self._puts.popleft()
        return Settled(tuple(stored), tuple(skipped))

    def _send_again(self, put: AsyncPut, now_ms: int, resend: Callable[[int], Resent]) -> None:
        put.resend_count += 1
        outcome = resend(put.queue_offset)
        if outcome is Resent.STORED:
            put.state = PutState.SUCCESS
        elif outcome is Resent.MISSING and put.resend_count > 2 * self._rules.blocked_after:
            put.state = PutState.SKIP
        else:
            put.next_try_ms = now_ms + self._wait_ms(put)

    def _wait_ms(self, put: AsyncPut) -> int:
        steps = put.resend_count + self._first_wait
        return min(steps * _WAIT_STEP_MS, _LONGEST_WAIT_MS)
