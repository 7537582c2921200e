# SPDX-License-Identifier: Apache-2.0
"""The table of docs/MIGRATING.md with backlogs that nobody has converted: arithmetic with measured
rates, those of the largest conversion in benchmarks/results/convert.json.
"""

import statistics
from collections.abc import Iterator

import attrs

from benchmarks.machine import table
from tools.performance_bars import NOT_MEASURED, Results

_TERA, _GIGA = 1e12, 1e9
_SHARED_BYTES_A_SECOND = 2e9
"""Of storage that many machines share, each way; an assumption."""
_TARGET_SHARE = 1.2
"""What a target takes, in bytes of its source's log: queue and timer log are a fifth of it."""
_MOST_MESSAGES = 2**31
_MINUTE, _HOUR = 60, 3_600


@attrs.frozen(kw_only=True)
class Backlog:
    """So many bytes on machines that convert them at the same time, by so many cores each. Without
    ``is_shared`` each machine has a disk of its own.
    """

    what: str
    machines: str
    machine_count: int
    cores: int
    size_bytes: float = 10 * _TERA
    is_shared: bool = False
    note: str = ""


BACKLOGS = (
    Backlog(
        what="10 TB that wait on 20 brokers, 500 GB each",
        machines="one of 8 cores for each broker",
        machine_count=20,
        cores=8,
        note="Columns take 240 GB beside each target. Levels or topics one after the other"
        " (`--only-levels`) make them as small as you like",
    ),
    Backlog(
        what="10 TB in one store",
        machines="20 workers of 8 cores and shared storage",
        machine_count=20,
        cores=8,
        is_shared=True,
        note="One target has at most 2³¹ messages, {most:.1f} TB of such records. So this is many"
        " targets, or records of 5 KB and more",
    ),
    Backlog(
        what="10 TB that wait on 20 brokers, one command",
        machines="20 workers and shared storage",
        machine_count=20,
        cores=1,
        is_shared=True,
        note="A store is one task",
    ),
    Backlog(
        what="1,000 brokers of 10 GB",
        machines="one of two cores",
        machine_count=1,
        cores=2,
        note="A store has 5 GB of columns on the disk",
    ),
    Backlog(
        what="the same",
        machines="20 of two cores, 50 stores each",
        machine_count=20,
        cores=2,
    ),
    Backlog(
        what="the same, one command",
        machines="20 workers of 8 cores and shared storage",
        machine_count=20,
        cores=8,
        is_shared=True,
        note="A store is one task",
    ),
)


def paper_table(results: Results) -> str:
    """A row a backlog: what bounds it, and how long it takes."""
    found = results.get("convert", {})
    runs = [run for run in found.get("runs", ()) if run["convert"]]
    if not runs:
        return f"The rates of a conversion were {NOT_MEASURED}."
    run = max(runs, key=lambda each: int(each["messages"]))
    took_s = statistics.median(each["total"] for each in run["convert"])
    core_rate = run["commit_log_bytes"] / took_s / int(found["facts"]["cores"])
    disk_rate = found["direct_bytes_per_s"]
    record_bytes = run["commit_log_bytes"] / run["messages"]
    said = (
        f"A core converts {core_rate / _GIGA:.2f} GB of log a second, with its share of plan and"
        f" seal. A disk reads and writes {disk_rate / _GIGA:.1f} GB/s in all, storage that is"
        f" shared {_SHARED_BYTES_A_SECOND / _GIGA:.0f} GB/s each way. Records have"
        f" {record_bytes:.0f} bytes."
    )
    head = ("backlog", "machines", "the cores need", "the storage needs", "to know")
    rows = (_cells(each, core_rate, disk_rate, record_bytes) for each in BACKLOGS)
    return f"{said}\n\n{table(head, rows)}"


def _cells(
    backlog: Backlog, core_rate: float, disk_rate: float, record_bytes: float
) -> Iterator[str]:
    of_each = backlog.size_bytes / backlog.machine_count
    cores_s = of_each / backlog.cores / core_rate
    storage_s = of_each * (1 + _TARGET_SHARE) / disk_rate
    if backlog.is_shared:
        storage_s = backlog.size_bytes * _TARGET_SHARE / _SHARED_BYTES_A_SECOND
    yield from (backlog.what, backlog.machines)
    longest = max(cores_s, storage_s)
    for needed_s in (cores_s, storage_s):
        yield f"**{_duration(needed_s)}**" if needed_s == longest else _duration(needed_s)
    yield backlog.note.format(most=_MOST_MESSAGES * record_bytes / _TERA)


def _duration(seconds: float) -> str:
    """Rounded as arithmetic is: seconds, minutes up to two hours, hours."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{max(2, round(seconds / _MINUTE))} minutes"
    return f"{seconds / _HOUR:.1f} hours"
