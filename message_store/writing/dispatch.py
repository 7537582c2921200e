# SPDX-License-Identifier: Apache-2.0
"""Dispatch at recovery: give each queue the entries of records that it lacks.

A queue has a record when its last entry's record ends behind it. A torn entry, in which some bytes
are still zero, is written again. A neutral entry stays neutral.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError, FormatError
from message_store.columns.byte_column import ByteColumn, Int64s, int64s, numbers_of
from message_store.columns.property_column import find_property_column
from message_store.format import properties as names
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import parse_long, string_hash
from message_store.format.message_rules import is_topic_name
from message_store.format.queue_unit import MAX_NEUTRAL_BYTES, QUEUE_UNIT
from message_store.format.record_layout import (
    SMALLEST_RECORD_BYTES,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
)
from message_store.kernels.dispatch import (
    FOUND_LENGTH,
    ROW_FIELDS,
    SECTOR_BYTES,
    hash_texts,
    list_records,
)
from message_store.kernels.log import FILE_ENDS, RECORD
from message_store.kernels.raw_memory import address_of
from message_store.kernels.text import NOT_UTF8
from message_store.reading.commit_log import NO_TIME
from message_store.reading.consume_queue import UnitArray, is_filled, out_of_order
from message_store.reading.engine_choice import is_hierarchical
from message_store.writing.log import LiveLog
from message_store.writing.queue import NEUTRAL_SIZE, LiveQueue
from message_store.writing.queue_set import QueueSet

_ROWS_AT_ONCE = 1 << 16
_NONE: Int64s = np.empty(0, np.int64)
_SYS_INNER_BATCH = 0x80


class _Rows:
    """Records of one log file: a column for each of ``ROW_FIELDS``, and the file's bytes."""

    def __init__(self, columns: NDArray[np.int64], file: NDArray[np.uint8], start: int) -> None:
        self.columns = columns
        self.file = file
        self.start = start

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def __getitem__(self, name: str) -> Int64s:
        column: Int64s = self.columns[ROW_FIELDS.index(name)]
        return column

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "_Rows":
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return _Rows(np.ascontiguousarray(self.columns[:, chosen]), self.file, self.start)

    @property
    def ends(self) -> Int64s:
        ends: Int64s = self["commit_log_offset"] + self["size_bytes"]
        return ends

    def texts(self, place: str, length: str) -> ByteColumn:
        starts = self["commit_log_offset"] - self.start + self[place]
        return ByteColumn(self.file, starts, self[length])

    def property(self, name: str) -> ByteColumn:
        return find_property_column(self.texts("properties_at", "properties_bytes"), name)


class Dispatcher:
    """Brings queues up to the log, and counts the entries that it adds and repairs.

    ``levels`` gives the due times of level entries. The last entries of ``doubted`` queues, by
    topic and queue id, may be damaged; the value is the commit log offset where the newest record
    ends to which they lead nevertheless. Entries of queue offsets that are ``astray`` may lead to
    the records of others, as all may behind such an end; where any are, nothing else is repaired.
    Of a queue without files, records before ``new_from`` are left out: its topic may have been
    deleted. Those in ``lost`` were there, and so were the queues of pending messages.
    RocketMQ: DefaultMessageStore.ReputMessageService#doReput (4.9.7).
    """

    def __init__(
        self,
        log: LiveLog,
        queues: QueueSet,
        levels: DelayLevels,
        doubted: Mapping[tuple[str, int], int] = MappingProxyType({}),
        *,
        astray: Int64s = _NONE,
        lost: Collection[tuple[str, int]] = (),
        new_from: int = 0,
    ) -> None:
        self._log = log
        self._lost, self._new_from = lost, new_from
        self._queues = queues
        self._levels = levels
        self._known_ends = dict(doubted)
        self._astray = astray
        self.dispatched = 0
        self.repaired = 0
        self._is_whole_log = True
        self._lacks_beginning = False
        self._damaged: list[tuple[int, int]] = []
        self._replaced: list[int] = []

    def run(self, start: int, end: int, only: Container[tuple[str, int]] | None = None) -> bool:
        """Dispatch the records between two commit log offsets; those of some queues ``only``.

        Returns False when a queue lacks the entries of records before ``start``: they were lost,
        and only a dispatch of the whole log brings them back. Nothing is appended to such a queue.
        """
        self._is_whole_log = start <= self._log.min_offset
        self._lacks_beginning = False
        # Repair all torn entries before appending: a torn last entry hides the queue's true end.
        for deal_with in (self._repair, self._append_new):
            for rows in self._records(start, end):
                for topic, one_queue in _by_queue(rows):
                    name = (topic, int(one_queue["queue_id"][0]))
                    if topic == names.LEVEL_TOPIC and deal_with == self._repair:
                        self._replaced += _replaced_by(one_queue)
                    if self._may_be_deleted(*name):
                        one_queue = one_queue.take(one_queue["commit_log_offset"] >= self._new_from)
                    if len(one_queue) and (only is None or name in only):
                        deal_with(self._queues.queue(*name), one_queue)
        return not self._lacks_beginning

    def _may_be_deleted(self, topic: str, queue_id: int) -> bool:
        if topic in names.WAITING_TOPICS or (topic, queue_id) in self._lost:
            return False
        queue = self._queues.find(topic, queue_id)
        return queue is None or not queue.segments.starts

    def queue_ids(self, wanted: str, start: int, end: int) -> set[int]:
        """The queues of a topic that records between these places belong to; changes nothing."""
        return {
            int(one_queue["queue_id"][0])
            for rows in self._records(start, end)
            for topic, one_queue in _by_queue(rows.take(rows["commit_log_offset"] < end))
            if topic == wanted
        }

    def _records(self, start: int, end: int) -> Iterator[_Rows]:
        """The records between two commit log offsets, in the order of the log."""
        segments = self._log.segments
        walked = np.zeros(FOUND_LENGTH, np.int64)
        columns = np.empty((len(ROW_FIELDS), _ROWS_AT_ONCE), np.int64)
        self._damaged.clear()
        while start < end:
            file_start = start - start % segments.file_bytes
            file = np.frombuffer(segments.view(file_start, segments.file_bytes), np.uint8)
            count = list_records(
                address_of(file),
                start - file_start,
                segments.file_bytes,
                file_start,
                columns,
                walked,
            )
            yield _Rows(columns[:, :count], file, file_start)
            start = file_start + int(walked[0])
            if walked[1] == FILE_ENDS:
                start = file_start + segments.file_bytes
            elif walked[1] != RECORD and start < end:
                damaged, start = start, self._log.next_record(start)
                if start < 0:
                    return
                self._damaged.append((damaged, start))

    def _append_new(self, queue: LiveQueue, rows: _Rows) -> None:
        """Give a queue the entries of the records that lie behind its last one."""
        name = (queue.topic, queue.queue_id)
        rows = rows.take(rows.ends > self._known_ends.get(name, queue.end_position))
        rows = rows.take(~self._is_listed(queue, rows))
        if not len(rows):
            return
        first = int(rows["queue_offset"][0])
        if first > queue.max_offset and not self._is_whole_log:
            self._lacks_beginning = True
            return
        queue.begin_at(first)
        units = _as_neutral_as_before(queue, rows, self._units(queue.topic, rows))
        self._neutralise(units, np.isin(rows["commit_log_offset"], self._replaced), rows.ends)
        queue.append(self._with_gaps_filled(queue, rows, units))
        self._known_ends.pop(name, None)
        self.dispatched += len(rows)

    @staticmethod
    def _neutralise(units: UnitArray, which: NDArray[np.bool_], ends: Int64s) -> None:
        units["commit_log_offset"][which] = ends[which] - NEUTRAL_SIZE
        units["size_bytes"][which] = NEUTRAL_SIZE

    def _with_gaps_filled(self, queue: LiveQueue, rows: _Rows, units: UnitArray) -> UnitArray:
        """These new entries, with neutral ones where ordinals are missing: of damaged records. Else
        all behind would move, and offsets, marks and an index count by places. No more are believed
        to be missing than have room in what was passed as damaged.

        A broker moves them. So do we in topics that it reads as it stands: no consumer can take a
        neutral entry there, and no broker places one.
        """
        if not self._counts_by_places(queue.topic):
            return units
        ends = np.concatenate([[queue.end_position], rows.ends[:-1]])
        before = np.concatenate([[queue.max_offset - 1], rows["queue_offset"][:-1]])
        missing = np.maximum(rows["queue_offset"] - before - 1, 0)
        offsets = rows["commit_log_offset"]
        for row in np.flatnonzero(missing).tolist():
            if missing[row] > self._damaged_bytes(ends[row], offsets[row]) // SMALLEST_RECORD_BYTES:
                missing[row] = 0
        if not missing.any():
            return units
        rows_of = np.repeat(np.arange(len(units)), missing + 1)
        to_next = np.repeat(np.cumsum(missing + 1), missing + 1) - np.arange(len(rows_of)) - 1
        filled = units[rows_of]
        is_new = to_next > 0
        filled["commit_log_offset"][is_new] = offsets[rows_of[is_new]] - to_next[is_new]
        filled["size_bytes"][is_new] = NEUTRAL_SIZE
        return filled

    def _counts_by_places(self, topic: str) -> bool:
        """Whether a queue is a level's, a time index's, or that of a hierarchical wheel."""
        if topic == names.TIMER_TOPIC:
            return is_hierarchical(self._queues.root)
        return topic in (names.LEVEL_TOPIC, names.TIME_INDEX_TOPIC)

    def _damaged_bytes(self, first: int, end: int) -> int:
        """How many bytes between two places of the log were passed as damaged."""
        return sum(max(0, min(end, to) - max(first, at)) for at, to in self._damaged)

    def _is_listed(self, queue: LiveQueue, rows: _Rows) -> NDArray[np.bool_]:
        """Which of these records the queue leads to: at their ordinals, or before those where a
        rebuild has moved its entries.
        """
        if not len(rows) or not queue.max_offset:
            return np.zeros(len(rows), bool)
        moved = queue.units(
            queue.first_behind(int(rows["commit_log_offset"][0]) - 1), queue.max_offset
        )
        ends = int64s(moved["commit_log_offset"]) + moved["size_bytes"]
        is_listed = np.isin(rows.ends, ends[is_filled(moved)])
        there = np.flatnonzero(self._is_held(queue, rows))
        if len(there):
            stored = _units_at(queue, rows["queue_offset"][there])
            ends = stored["commit_log_offset"] + stored["size_bytes"].astype(np.int64)
            is_listed[there] |= is_filled(stored) & (ends == rows.ends[there])
        return is_listed

    def _is_held(self, queue: LiveQueue, rows: _Rows) -> NDArray[np.bool_]:
        """Which of these records' ordinals the queue has."""
        places, first = rows["queue_offset"], queue.segments.min_offset // QUEUE_UNIT.size
        return np.asarray((places >= first) & (places < queue.max_offset))

    def _units(self, topic: str, rows: _Rows) -> UnitArray:
        """The entries that these records should have."""
        units = np.empty(len(rows), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = rows["commit_log_offset"]
        units["size_bytes"] = rows["size_bytes"]
        units["tags_code"] = self._tags_codes(topic, rows)
        return units

    def _tags_codes(self, topic: str, rows: _Rows) -> Int64s:
        if topic != names.LEVEL_TOPIC:
            return _hashes(rows.property(names.TAGS))
        texts = rows.property(names.DELAY).to_arrow().dictionary_encode()
        delays = [self._delay_ms(text) for text in texts.dictionary.to_pylist()]
        is_level = np.array([delay is not None for delay in delays], bool)
        delay_ms = np.array([delay or 0 for delay in delays], np.int64)
        numbers = numbers_of(texts.indices)
        codes: Int64s = rows["store_timestamp_ms"] + delay_ms[numbers]
        others = np.flatnonzero(~is_level[numbers])
        if len(others):  # seldom: a level's records say which
            codes[others] = _hashes(rows.property(names.TAGS).take(others))
        return codes

    def _delay_ms(self, text: bytes) -> int | None:
        """The delay that a DELAY property asks for; None when it asks for none."""
        levels = self._levels
        try:
            level = levels.clamp(parse_long(text.decode("ascii", "replace")))
        except BadFieldError:
            return None
        return levels.delay_ms(level) if level else None

    def _repair(self, queue: LiveQueue, rows: _Rows) -> None:
        """Write torn entries again, among those that stand at their records' ordinals."""
        rows = rows.take(self._is_held(queue, rows))
        if not len(rows):
            return
        places = rows["queue_offset"]
        wanted = self._units(queue.topic, rows)
        stored = _units_at(queue, places).astype(QUEUE_UNIT.dtype)
        neutral = wanted.copy()
        neutral["commit_log_offset"] = rows.ends - NEUTRAL_SIZE
        neutral["size_bytes"] = NEUTRAL_SIZE
        stored_bytes, wanted_bytes, neutral_bytes = map(_bytes_of, (stored, wanted, neutral))
        is_wanted, is_neutral = stored_bytes == wanted_bytes, stored_bytes == neutral_bytes
        # Neutral is what ends with its record and is too short to be one, whatever it was made for.
        sizes = stored["size_bytes"].astype(np.int64)
        is_short = (sizes > 0) & (sizes < SMALLEST_RECORD_BYTES)
        is_whole = is_short & (stored["commit_log_offset"] + sizes == rows.ends)
        is_whole |= is_wanted.all(axis=1)
        if queue.topic == names.LEVEL_TOPIC:
            # What is due at once has the time there when it was stored, without a delay.
            is_due_at_once = stored["tags_code"] == rows["store_timestamp_ms"]
            is_whole |= (
                is_wanted[:, : QUEUE_UNIT.offset_of("tags_code")].all(axis=1) & is_due_at_once
            )
        is_part = (is_wanted | is_neutral | (stored_bytes == 0)).all(axis=1)
        is_lost = self._leads_nowhere(stored) & ~is_part
        known_end = self._known_ends.get((queue.topic, queue.queue_id), -1)
        is_asked = (rows.ends > known_end) & (known_end > 0) & ~(is_part | is_lost)
        if len(self._astray):
            is_part[:], is_lost[:], is_asked = False, False, np.isin(places, self._astray)
        for row in np.flatnonzero(is_asked & ~is_whole).tolist():
            is_lost[row] = self._is_of_another(queue, int(places[row]), stored[row], wanted[row])
        for row in np.flatnonzero((is_part | is_lost) & ~is_whole).tolist():
            # Half neutralised: finish it, because nobody was told that it was not.
            # A byte that is zero may be one that was never written.
            tells = is_neutral[row] & ~is_wanted[row] & (stored_bytes[row] != 0)
            became_neutral = bool(tells.any())
            # By chance, a damaged byte is any: only a write over two sectors cuts a field in two.
            is_of_whole_fields = all(
                stored[name][row] in (wanted[name][row], neutral[name][row])
                for name in ("commit_log_offset", "size_bytes")
            )
            is_torn = is_of_whole_fields or _can_be_torn(queue, int(places[row]))
            if is_lost[row] or not is_torn:
                offset = int(stored["commit_log_offset"][row])
                is_near_end = 0 < int(rows.ends[row]) - offset < SMALLEST_RECORD_BYTES
                is_at_record = offset == int(rows["commit_log_offset"][row])
                became_neutral = is_near_end or (
                    0 < sizes[row] <= MAX_NEUTRAL_BYTES and not is_at_record
                )
            unit = (neutral if became_neutral else wanted)[row]
            queue.overwrite(int(places[row]), *map(int, unit.tolist()))
            self.repaired += 1

    def _is_of_another(
        self, queue: LiveQueue, place: int, stored: np.void, wanted: np.void
    ) -> bool:
        """Whether an entry is proven to lead to the record of another, and which is its own: the
        other's entry leads there too, and nothing leads to its own. In a queue that a broker has
        rebuilt with entries moved every record names another place, and has one entry all the same.
        """
        leads_to = int(stored["commit_log_offset"])
        with suppress(FormatError):
            record = self._log.record(leads_to, int(stored["size_bytes"]))
            if (record.topic, record.queue_id) == (queue.topic, queue.queue_id):
                other = record.queue_offset
                its = queue.units(other, other + 1)["commit_log_offset"].tolist()
                if other == place or its != [leads_to]:
                    return False
        known = queue.units(queue.min_offset, queue.max_offset)["commit_log_offset"]
        return int(wanted["commit_log_offset"]) not in known

    def _leads_nowhere(self, stored: UnitArray) -> NDArray[np.bool_]:
        """Which entries were damaged, so that no record of their size begins where they lead."""
        offsets = stored["commit_log_offset"].astype(np.int64)
        sizes = stored["size_bytes"].astype(np.int64)
        return np.asarray(self._log.store_times_ms(offsets, sizes) == NO_TIME)


def mend_astray(
    log: LiveLog, queues: QueueSet, levels: DelayLevels, queue: LiveQueue, first: int
) -> int:
    """Make entries from a queue offset on anew that lead to the records of others, or to none, as
    far as that shows: a queue's entries lead ever farther into the log. Returns how many.
    """
    first = max(first - 1, queue.min_offset)
    if all((piece[1:] > piece[:-1]).all() for piece in _log_offsets(queue, first)):
        return 0
    units = queue.units(first, queue.max_offset)
    offsets = units["commit_log_offset"].astype(np.int64)
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    doubted = np.union1d(falls, falls + 1)
    sound = np.flatnonzero(~out_of_order(offsets))
    before, behind = sound[sound < doubted[0]], sound[sound > doubted[-1]]
    start = int(offsets[before[-1]]) if len(before) else log.min_offset
    end = int(offsets[behind[0]]) if len(behind) else log.end
    dispatcher = Dispatcher(log, queues, levels, astray=first + doubted)
    dispatcher.run(start, end, only={(queue.topic, queue.queue_id)})
    return dispatcher.repaired


_UNITS_AT_ONCE = 1 << 20


def _log_offsets(queue: LiveQueue, first: int) -> Iterator[Int64s]:
    """Where the entries from a queue offset on lead, in pieces of which each begins with the last
    of the one before.
    """
    while first < queue.max_offset:
        units = queue.units(first, min(first + _UNITS_AT_ONCE, queue.max_offset))
        yield units["commit_log_offset"].astype(np.int64)
        first += max(len(units) - 1, 1)
        if first == queue.max_offset - 1:
            return


def _can_be_torn(queue: LiveQueue, queue_offset: int) -> bool:
    """Whether an entry lies in two sectors: within one, a disk writes all of it or nothing."""
    position = queue_offset * QUEUE_UNIT.size % queue.segments.file_bytes
    return position % SECTOR_BYTES + QUEUE_UNIT.size > SECTOR_BYTES


def _replaced_by(rows: _Rows) -> list[int]:
    """Where the records lie that these ones of a level replace (``intake.rescheduling``)."""
    texts, offsets, replaced = rows.property(names.RESCHEDULED_FROM), rows["commit_log_offset"], []
    for row in np.flatnonzero(texts.lengths).tolist():
        numbers = names.replacement_of_text(texts[row].decode("utf-8", "replace"))
        if numbers is not None and numbers[0] < numbers[1] == offsets[row]:
            replaced.append(numbers[0])
    return replaced


def _as_neutral_as_before(queue: LiveQueue, rows: _Rows, units: UnitArray) -> UnitArray:
    """These new entries, neutral where the one that was cut off was: it led to the last bytes of
    the same record. Its size may have been damaged, which made it the queue's end.
    """
    for size_bytes in range(1, MAX_NEUTRAL_BYTES + 1) if len(queue.rest) else ():
        was_neutral = np.isin(rows.ends - size_bytes, queue.rest)
        units["commit_log_offset"][was_neutral] = rows.ends[was_neutral] - size_bytes
        units["size_bytes"][was_neutral] = size_bytes
    return units


def _units_at(queue: LiveQueue, queue_offsets: Int64s) -> UnitArray:
    low = int(queue_offsets.min())
    return queue.units(low, int(queue_offsets.max()) + 1)[queue_offsets - low]


def _hashes(tags: ByteColumn) -> Int64s:
    codes = np.empty(len(tags), np.int64)
    hash_texts(*tags.addresses, len(tags), codes)
    for row in np.flatnonzero(codes == NOT_UTF8).tolist():
        codes[row] = string_hash(tags[row].decode("utf-8", "replace"))
    return codes


def _by_queue(rows: _Rows) -> Iterator[tuple[str, _Rows]]:
    """The records that belong into a queue, with their topic, for each queue in turn."""
    kind = rows["sys_flag"] & SYS_TRANSACTION_MASK
    is_visible = ((kind == 0) | (kind == SYS_COMMIT)) & (rows["queue_id"] >= 0)
    rows = rows.take(is_visible & (rows["sys_flag"] & _SYS_INNER_BATCH == 0))
    # By name and not by a hash of it: clients choose the names.
    texts = rows.texts("topic_at", "topic_bytes").to_arrow().dictionary_encode()
    keys = (numbers_of(texts.indices).astype(np.int64) << 32) | rows["queue_id"]
    _, firsts, groups = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    limits = np.searchsorted(groups[order], np.arange(len(firsts) + 1))
    for group in range(len(firsts)):
        chosen = rows.take(order[limits[group] : limits[group + 1]])
        topic = chosen.texts("topic_at", "topic_bytes")[0].decode("utf-8", "replace")
        if is_topic_name(topic):
            yield topic, chosen


def _bytes_of(units: UnitArray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(units).view(np.uint8).reshape(len(units), QUEUE_UNIT.size)
