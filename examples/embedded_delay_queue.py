# SPDX-License-Identifier: Apache-2.0
"""A durable delay queue inside a program: no server, one directory, and pending messages survive.

The clock is moved by hand, so the night passes at once. With ``SystemClock()``, the default, the
same program waits. Prints::

    evening: 3 reminders stored
    first: 2026-01-02T06:59:59Z, as promised
    morning, in another process: 2 reminders were due while no process ran, late by 2h
    the third one: cancelled
"""

from delaywheel import AfterMs, ManualClock, Message, WheelStore
from message_store.base.printable import iso_time, span

HOUR_MS = 3_600_000
EVENING_MS = 1_767_308_400_000  # 2026-01-01T23:00:00Z

clock = ManualClock(EVENING_MS)
with WheelStore.open("reminders", clock=clock) as store:
    receipts = [
        store.schedule(Message("reminders", b"call %d" % number), AfterMs(delay_ms))
        for number, delay_ms in enumerate((8 * HOUR_MS - 1_000, 8 * HOUR_MS, 20 * HOUR_MS))
    ]
    store.flush()  # from here on, even a loss of power loses nothing
    print(f"evening: {len(receipts)} reminders stored")
    print(f"first: {iso_time(receipts[0].promised_ms)}, as promised")

clock.tick(10 * HOUR_MS)
with WheelStore.open("reminders", clock=clock) as store:
    deliveries = store.advance(clock.now_ms())
    late = span(deliveries[-1].lateness_ms)
    print(
        f"morning, in another process: {len(deliveries)} reminders were due while no process ran,"
        f" late by {late}"
    )
    print(f"the third one: {store.cancel(receipts[2].handle).value}")
    assert store.next_due_ms() is None
    assert len(store.topic("reminders").read(queue_id=0, from_offset=0)) == 2
