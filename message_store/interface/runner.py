# SPDX-License-Identifier: Apache-2.0
"""The loop around a store: ask the clock, advance, hand over what was delivered, sleep until the
next is due. The only place that sleeps.
"""

import logging
from collections.abc import Callable

from message_store.base.clock import Clock
from message_store.interface.delay_store import DelayStore, Deliveries

DEFAULT_POLL_MS = 100
_REST, _LONGEST_REST_MS = 3, 10

_LOG = logging.getLogger(__name__)


def _never() -> bool:
    return False


def run_store(
    store: DelayStore,
    clock: Clock,
    on_deliveries: Callable[[Deliveries], object],
    *,
    stop: Callable[[], bool] = _never,
    until_ms: int | None = None,
    poll_ms: int = DEFAULT_POLL_MS,
    flush_every_ms: int | None = None,
) -> int:
    """Deliver what becomes due, until told to stop; how many messages that were.

    ``on_deliveries`` gets what each round delivered, and is not called for nothing. ``stop`` is
    asked before every round. What is due at ``until_ms`` is still delivered, nothing after it.
    ``poll_ms`` bounds each sleep, because another thread may schedule something sooner or ``stop``
    may change its mind; where neither can happen (a week on a ``ManualClock``) let it be long.
    Where more is due at once, as on levels under load, it rests three times as long as the round
    took, 10 ms at most: threads that schedule get on, and the next round delivers more at a time.
    With ``flush_every_ms`` the store is flushed that often, so that a loss of power costs no
    more than that and a round.

    Errors of the store and of ``on_deliveries`` come out; what was delivered until then stays
    delivered.

    >>> from message_store import AtMs, ManualClock, MemoryStore, Message
    >>> clock, week_ms = ManualClock(0), 604_800_000
    >>> with MemoryStore(clock) as store:
    ...     receipt = store.schedule(Message("orders", b"cancel 42"), AtMs(week_ms))
    ...     run_store(store, clock, list, until_ms=week_ms, poll_ms=3_600_000)
    1
    """
    delivered, flushed_ms = 0, clock.now_ms()
    while not stop():
        now_ms = clock.now_ms()
        if until_ms is not None:
            now_ms = min(now_ms, until_ms)
        deliveries = store.advance(now_ms)
        if len(deliveries):
            delivered += len(deliveries)
            on_deliveries(deliveries)
            _LOG.info("delivered", extra={"facts": {"count": len(deliveries), "now_ms": now_ms}})
        since_ms = clock.now_ms() - flushed_ms
        if flush_every_ms is not None and not 0 <= since_ms < flush_every_ms:
            flushed_ms += since_ms
            store.flush()  # behind what is due, which need not wait for a disk
            _LOG.info("flushed")
        if now_ms == until_ms:
            break
        wake_ms = [now_ms + poll_ms, store.next_due_ms(), until_ms]
        earliest_ms = min(time_ms for time_ms in wake_ms if time_ms is not None)
        # Asked again, because the callback took its time; whatever the clock says, neither a loop
        # without sleep nor a sleep beyond the bound.
        over_ms = clock.now_ms()
        rest_ms = max(1, min(_REST * (over_ms - now_ms), _LONGEST_REST_MS))
        clock.sleep_ms(min(poll_ms, max(rest_ms, earliest_ms - over_ms)))
    return delivered
