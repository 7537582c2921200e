# SPDX-License-Identifier: Apache-2.0
"""Repeated jobs, as of a cron: each run schedules the next one before it works.

A run is acknowledged when its work is done. If the program dies in the middle, it receives the run
again when it is started again. The unique key of the next run tells whether it was planned before.
Due times count from the last due time, not from the present, so runs do not drift. Prints::

    Thu 00:00 report
    Thu 00:00 backup
    Thu 06:00 backup
    Thu 12:00 backup
    Thu 18:00 backup
    Fri 00:00 report
    Fri 00:00 backup
"""

from datetime import UTC, datetime

from delaywheel import AtMs, ManualClock, Message, Received, WheelStore, run_consumers

HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_767_225_600_000  # a Thursday, 2026-01-01T00:00:00Z
EVERY_MS = {"report": 24 * HOUR_MS, "backup": 6 * HOUR_MS}


def plan(store: WheelStore, job: str, due_ms: int) -> None:
    """Schedule one run of a job, unless that was done before."""
    key = f"{job}-{due_ms}"
    delivered = store.topic("jobs").read(queue_id=0, from_offset=0, max_messages=10_000)
    is_delivered = any(run.unique_key == key for run in delivered)
    if not is_delivered and not any(store.pending(topic="jobs", unique_key=key)):
        run = Message("jobs", job.encode(), keys=str(due_ms), unique_key=key)
        store.schedule(run, AtMs(due_ms))


clock = ManualClock(MIDNIGHT_MS - HOUR_MS)
with WheelStore.open("jobs", clock=clock) as store:

    def work(run: Received) -> None:
        """Plan the next run of a job, then do this one."""
        job, due_ms = run.body.decode(), int(run.keys[0])
        plan(store, job, due_ms + EVERY_MS[job])
        moment = datetime.fromtimestamp(due_ms / 1000, UTC)
        print(f"{moment:%a %H:%M} {job}")

    for job in EVERY_MS:
        plan(store, job, MIDNIGHT_MS)
    run_consumers(
        store,
        {("jobs", "cron"): work},
        stop=lambda: clock.now_ms() > MIDNIGHT_MS + 24 * HOUR_MS,
        poll_ms=HOUR_MS,
    )
