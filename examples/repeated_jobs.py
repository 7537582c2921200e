# SPDX-License-Identifier: Apache-2.0
"""Repeated jobs, as of a cron: each run schedules the next one before it works.

The next due time counts from the last promise, not from the present, so runs do not drift. The
unique key holds the due time. It distinguishes a new run from one that is repeated because the
program died after the delivery. Prints::

    Thu 00:00 report
    Thu 00:00 backup
    Thu 06:00 backup
    Thu 12:00 backup
    Thu 18:00 backup
    Fri 00:00 report
    Fri 00:00 backup
"""

from datetime import UTC, datetime

from delaywheel import AtMs, DelayStore, Deliveries, ManualClock, Message, WheelStore, run_store

HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_767_225_600_000  # a Thursday, 2026-01-01T00:00:00Z
EVERY_MS = {"report": 24 * HOUR_MS, "backup": 6 * HOUR_MS}


def plan(store: DelayStore, job: str, due_ms: int) -> None:
    """Schedule one run of a job."""
    message = Message("jobs", job.encode(), tags=job, unique_key=f"{job}-{due_ms}")
    store.schedule(message, AtMs(due_ms))


clock = ManualClock(MIDNIGHT_MS - HOUR_MS)
with WheelStore.open("jobs", clock=clock) as store:

    def work(deliveries: Deliveries) -> None:
        """Plan the next run of each job, then do this one."""
        for delivered in deliveries:
            job = delivered.message.body.decode()
            plan(store, job, delivered.promised_ms + EVERY_MS[job])
            moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            print(f"{moment:%a %H:%M} {job}")

    for job in EVERY_MS:
        plan(store, job, MIDNIGHT_MS)
    run_store(store, clock, work, until_ms=MIDNIGHT_MS + 24 * HOUR_MS, poll_ms=HOUR_MS)
