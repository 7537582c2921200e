# SPDX-License-Identifier: Apache-2.0
"""A converted store takes part in the race of its own backlog: what it really delivers, and when,
beside what the levels would have delivered.

A copy of it is opened by the wheel's engine and run; nothing is put. Its messages are told by their
unique keys, because their bodies are what applications wrote.
"""

from collections import defaultdict
from pathlib import Path

import attrs
import numpy as np

from compare.report.delivered_topics import read_delivered_keys
from compare.running.engine_process import run_in_process
from compare.running.engine_watch import Progress
from compare.running.observation import Delivered, Observation, RaceSettings
from compare.running.work_files import (
    copied_store_bytes,
    copy_store,
    read_workload,
    remove,
    write_workload,
)
from compare.workloads.workload import Workload
from message_store.base.errors import SourceError
from message_store.columns.byte_column import Int64s, int64s
from message_store.files.small_files import is_directory, is_ordinary_file
from message_store.files.store_root import StoreRoot
from message_store.reading.engine_choice import is_hierarchical

CONVERTED = "converted"


@attrs.frozen
class ConvertedEntrant:
    """The store at ``target``, converted from the one whose backlog is the workload, from
    ``now_ms`` on. ``unique_keys`` are those of the workload's messages, by number.
    """

    target: Path
    unique_keys: tuple[str, ...]
    now_ms: int

    def lacks(self, settings: RaceSettings, progress: Progress) -> str | None:
        """Why it cannot run."""
        if settings.clock != "virtual":
            return "a converted store races on the virtual clock only"
        if len(set(self.unique_keys)) < len(self.unique_keys):
            return (
                "some of its messages share a unique key, or have none: they cannot be told apart"
            )
        return None

    def store_bytes(self, workload: Workload) -> int:
        """Room for the copy, whatever part of it the workload is."""
        return copied_store_bytes(self.target)

    def run(
        self, workload_file: Path, settings: RaceSettings, store: Path, progress: Progress
    ) -> Observation:
        """Run a copy of it. Raises SourceError where the store cannot be read."""
        workload = read_workload(workload_file)
        progress(f"{CONVERTED}: copying", 0, 0)
        copy_store(self.target, store)
        nothing = store.with_name(f"{store.name}-nothing.npz")
        write_workload(nothing, _nothing_from(workload, self.now_ms))
        quiet = attrs.evolve(settings, asleep_until_ms=0)
        try:
            seen = run_in_process("wheel", nothing, quiet, store, progress)
        finally:
            remove(nothing)
        return attrs.evolve(
            seen,
            start_ms=workload.start_ms,
            promised_ms=_slot_ends(workload, self.now_ms, settings.precision_ms),
            delivered=self._numbered(read_delivered_keys(store, self.now_ms)),
        )

    def _numbered(self, keys_and_times: list[tuple[str, int]]) -> Delivered:
        """What was delivered, by the numbers of the workload; what it does not know has none."""
        numbers: dict[str, int] = defaultdict(lambda: -1)
        numbers.update((key, number) for number, key in enumerate(self.unique_keys))
        return Delivered(
            [numbers[key] for key, _ms in keys_and_times], [ms for _key, ms in keys_and_times]
        )


def _nothing_from(workload: Workload, start_ms: int) -> Workload:
    """A workload without messages that begins at a time."""
    none = int64s([])
    return attrs.evolve(
        workload,
        start_ms=start_ms,
        arrival_ms=none,
        due_ms=none,
        level=none,
        topic=none,
        topics=(),
        body_bytes=none,
    )


def _slot_ends(workload: Workload, now_ms: int, precision_ms: int) -> Int64s:
    """The wheel's promise for a message that is pending at that time."""
    due_ms = np.maximum(workload.due_ms, now_ms)
    return -(-due_ms // precision_ms) * precision_ms


def require_converted(target: Path) -> None:
    """Raise SourceError for what is no store with a wheel."""
    if not is_directory(target):
        raise SourceError(f"{target}: no such directory; --converted names a converted store")
    if is_hierarchical(StoreRoot(target)):
        raise SourceError(
            f"{target}: is on a hierarchical wheel, whose due times the wheel would change;"
            " --converted names a store with a timer wheel"
        )
    if not is_ordinary_file(target / "timerwheel"):
        raise SourceError(f"{target}: holds no timer wheel; --converted names a converted store")
