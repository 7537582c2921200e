# SPDX-License-Identifier: Apache-2.0
"""Orders that are not paid within half an hour are cancelled; a payment cancels the timeout.

Half an hour is one of RocketMQ's delay levels, so the engine of the levels suffices. A timeout is
acknowledged when its order is cancelled: after a kill in between, the next process receives it. The
clock is moved by hand. Prints::

    0 minutes: orders 1, 2 and 3 were placed
    10 minutes: order 2 was paid
    30 minutes: order 1 is cancelled
    30 minutes: order 3 is cancelled
    31 minutes: order 3 is paid, too late: already delivered
"""

from delaywheel import AfterMs, LevelStore, ManualClock, Message, Received, run_consumers

MINUTE_MS = 60_000
START_MS = 1_767_308_400_000

clock = ManualClock(START_MS)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{(clock.now_ms() - START_MS) // MINUTE_MS} minutes: {text}")


def cancel_order(timeout: Received) -> None:
    """Cancel an order whose time is up."""
    say(f"order {timeout.keys[0]} is cancelled")


def work_until(store: LevelStore, minutes: int) -> None:
    """Let the time pass, and cancel the orders whose time is up."""
    run_consumers(
        store,
        {("timeouts", "orders"): cancel_order},
        stop=lambda: clock.now_ms() >= START_MS + minutes * MINUTE_MS,
        poll_ms=MINUTE_MS,
    )


with LevelStore.open("timeouts", clock=clock) as store:
    timeouts = {
        order: store.schedule(Message("timeouts", b"", keys=order), AfterMs(30 * MINUTE_MS)).handle
        for order in ("1", "2", "3")
    }
    say("orders 1, 2 and 3 were placed")
    work_until(store, minutes=10)
    store.cancel(timeouts["2"])
    say("order 2 was paid")
    work_until(store, minutes=31)
    say(f"order 3 is paid, too late: {store.cancel(timeouts['3']).value}")
