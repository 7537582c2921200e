# SPDX-License-Identifier: Apache-2.0
"""Orders that are not paid within half an hour are cancelled; a payment cancels the timeout.

Half an hour is one of RocketMQ's delay levels, so the engine of the levels suffices. The clock is
moved by hand. Prints::

    0 minutes: orders 1, 2 and 3 were placed
    10 minutes: order 2 was paid
    30 minutes: order 1 is cancelled
    30 minutes: order 3 is cancelled
    31 minutes: order 3 is paid, too late: already delivered
"""

from delaywheel import AfterMs, Deliveries, LevelStore, ManualClock, Message, run_store

MINUTE_MS = 60_000
START_MS = 1_767_308_400_000

clock = ManualClock(START_MS)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{(clock.now_ms() - START_MS) // MINUTE_MS} minutes: {text}")


def cancel_orders(deliveries: Deliveries) -> None:
    """Cancel the orders whose time is up."""
    for delivered in deliveries:
        say(f"order {delivered.message.keys[0]} is cancelled")


with LevelStore.open("timeouts", clock=clock) as store:
    timeouts = {
        order: store.schedule(Message("timeouts", b"", keys=order), AfterMs(30 * MINUTE_MS)).handle
        for order in ("1", "2", "3")
    }
    say("orders 1, 2 and 3 were placed")
    run_store(store, clock, cancel_orders, until_ms=START_MS + 10 * MINUTE_MS)
    store.cancel(timeouts["2"])
    say("order 2 was paid")
    run_store(store, clock, cancel_orders, until_ms=START_MS + 31 * MINUTE_MS)
    say(f"order 3 is paid, too late: {store.cancel(timeouts['3']).value}")
