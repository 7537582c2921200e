# SPDX-License-Identifier: Apache-2.0
"""A delay queue inside a program: orders that are not paid within half an hour are cancelled.

The clock is moved by hand, so that the half hour passes at once; with ``SystemClock()`` the same
program waits. Prints::

    10 minutes: order 2 was paid
    30 minutes: order 1 is cancelled
    30 minutes: order 3 is cancelled
"""

from message_store import AfterMs, Deliveries, ManualClock, MemoryStore, Message, run_store

MINUTE_MS = 60_000

clock = ManualClock(0)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{clock.now_ms() // MINUTE_MS} minutes: {text}")


def cancel_orders(deliveries: Deliveries) -> None:
    """What happens to orders whose time is up."""
    for delivered in deliveries:
        say(f"order {delivered.message.keys[0]} is cancelled")


with MemoryStore(clock) as store:
    timeouts = {
        order: store.schedule(Message("timeouts", b"", keys=order), AfterMs(30 * MINUTE_MS))
        for order in ("1", "2", "3")
    }
    run_store(store, clock, cancel_orders, until_ms=10 * MINUTE_MS)
    store.cancel(timeouts["2"])
    say("order 2 was paid")
    run_store(store, clock, cancel_orders, until_ms=60 * MINUTE_MS)
