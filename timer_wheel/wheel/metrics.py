# SPDX-License-Identifier: Apache-2.0
"""The fast form of ``reference.files.MetricsOfStore``: counts by topic, for `timermetrics`.

Units know topics by their hashes; the first unit of a topic tells its name by its record. A delete
marker counts against its target, as a broker has it. Where nobody kept count, as after a crash, the
units that are yet to be read are counted when the file is written.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import Int64s
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.writing.log import LiveLog
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics
from timer_wheel.timers.rows import TimerRows
from timer_wheel.timers.unit_kernels import TOPIC_HASH


class LiveMetrics:
    """Counts by topic; ``is_known`` says whether they are complete, ``is_new`` whether the file is
    behind them, ``is_durable`` whether the file is known to be on the disk.
    """

    def __init__(self, root: StoreRoot, log: LiveLog, *, was_clean: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.is_known = False
        self.is_new = False
        self.is_durable = was_clean
        self._log = log
        self._names: dict[int, str] = {}
        if was_clean:
            self._load(read_small_file(root.config_file(TIMER_METRICS_NAME)))

    def _load(self, content: bytes | None) -> None:
        try:
            found = decode_timer_metrics(content or b"")
        except BadFieldError:
            return
        self.counts.update({topic: known.count for topic, known in found.topics.items()})
        self.is_known = True

    def placed(self, rows: TimerRows, sign: int = 1) -> None:
        """Count messages that came onto the wheel; with ``sign`` -1, that left it to roll."""
        if self.is_known:
            self._count(rows, sign)

    def _count(self, rows: TimerRows, sign: int) -> None:
        hashes = rows.table[TOPIC_HASH]
        if not len(hashes):
            return
        self.is_new = True
        known, first, places = np.unique(hashes, return_index=True, return_inverse=True)
        counts = np.bincount(places, np.where(rows.is_marker, -1, 1)).astype(np.int64)
        for topic_hash, row, count in zip(
            known.tolist(), first.tolist(), counts.tolist(), strict=True
        ):
            name = self._name(topic_hash, rows, row)
            if name is not None:
                self.counts[name] += sign * count

    def _name(self, topic_hash: int, rows: TimerRows, row: int) -> str | None:
        if topic_hash not in self._names:
            place = int(rows.commit_log_offset[row]), int(rows.size_bytes[row])
            try:
                self._names[topic_hash] = self._log.record(*place).real_topic
            except FormatError:
                return None
        return self._names[topic_hash]

    def delivered(self, topic: str, count: int) -> None:
        """Count messages that reached their topic."""
        self.is_new = True
        self.counts[topic] -= count

    def forget(self) -> None:
        """The counts may be wrong: ``count_anew`` makes them right."""
        self.is_known = False

    def written(self, *, durably: bool) -> None:
        """The file has the counts."""
        self.is_new, self.is_durable = False, durably

    def count_anew(self, pieces: Iterable[TimerRows], hand_ms: int, done: Int64s) -> None:
        """Count the units of a log that are yet to be read."""
        self.counts.clear()
        for rows in pieces:
            waits = (rows.slot_time_ms >= hand_ms) & ~np.isin(rows.commit_log_offset, done)
            self._count(rows.rows(waits), 1)
        self.is_known = self.is_new = True
