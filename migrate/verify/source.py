# SPDX-License-Identifier: Apache-2.0
"""The pending messages of a source under the conversion's settings, by ``read_backlog``."""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import FormatError
from message_store.files.array_room import marked_rows, row_blocks, zero_array
from message_store.files.log_row import open_log
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.message_codec import decode_message_at
from message_store.format.message_rules import QUEUE_ID_MAX, check_topic
from message_store.format.properties import REAL_QUEUE_ID, REAL_TOPIC, split_entries
from message_store.format.record_layout import PROPERTIES_MAX_BYTES
from message_store.format.timer_record_rules import host_problem
from migrate.report.marker import CONVERSION_NAME, ConversionSettings, Share, read_marker, share_in
from migrate.report.report import BadRecord
from migrate.verify.digests.complaints import Complaint
from migrate.verify.digests.entries import BUCKETS, SOURCE_ENTRY
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.report import Problem
from timer_wheel.format.wheel_math import out_ms

_TOO_LARGE_BYTES = 4 << 20
_NEAR_A_LIMIT_BYTES = 300
_LONG_PROPERTIES_BYTES = PROPERTIES_MAX_BYTES - _NEAR_A_LIMIT_BYTES
"""Records near a limit, and those without a body, may be in quarantine although nothing is wrong
with them.
"""
_OUT_DIGITS = 13
"""A due time with more or fewer digits is none, and reason enough."""


@attrs.frozen(eq=False)
class PendingMessages:
    """The pending messages of a source: parallel arrays, in the order of its commit log."""

    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[Any]
    level: NDArray[Any]
    queue_offset: NDArray[np.int64]
    due_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.commit_log_offset)

    def chosen(self, mask: NDArray[np.bool_]) -> "PendingMessages":
        """The messages for which ``mask`` is True."""
        if mask.all():
            return self
        columns = (getattr(self, field.name) for field in attrs.fields(PendingMessages))
        return PendingMessages(*(marked_rows(column, mask) for column in columns))

    def entries(self, precision_ms: int) -> NDArray[np.void]:
        """Rows of SOURCE_ENTRY."""
        entries = zero_array(len(self), SOURCE_ENTRY.dtype)
        for rows in row_blocks(len(self)):
            block = entries[rows]
            block["commit_log_offset"] = self.commit_log_offset[rows]
            block["size_bytes"] = self.size_bytes[rows]
            block["queue_id"] = self.level[rows] - 1
            block["queue_offset"] = self.queue_offset[rows]
            block["out_ms"] = out_ms(self.due_ms[rows], precision_ms)
        return entries


def _split_listed(
    pending: PendingMessages, records: tuple[BadRecord, ...]
) -> tuple[PendingMessages, PendingMessages, list[BadRecord]]:
    """The messages to find, those in quarantine, and listed entries that are not pending."""
    listed = {(entry.level, entry.queue_offset): entry for entry in records}
    quarantined = np.zeros(len(pending), bool)
    for level in {level for level, _ in listed}:
        offsets = [queue_offset for at_level, queue_offset in listed if at_level == level]
        quarantined |= (pending.level == level) & np.isin(pending.queue_offset, offsets)
    unknown_entries = dict(listed)
    for number in np.flatnonzero(quarantined):
        key = (int(pending.level[number]), int(pending.queue_offset[number]))
        if listed[key].commit_log_offset == pending.commit_log_offset[number]:
            del unknown_entries[key]
        else:
            quarantined[number] = False
    return (
        pending.chosen(~quarantined),
        pending.chosen(quarantined),
        list(unknown_entries.values()),
    )


def quarantine_problems(
    jobs: DigestJobs,
    root: StoreRoot,
    quarantined: PendingMessages,
    unknown_entries: list[BadRecord],
    settings: ConversionSettings,
) -> Iterator[Problem]:
    """QuarantinedRecord entries that are not pending, or with whose records nothing is wrong."""
    if unknown_entries:
        first = unknown_entries[0]
        yield Problem(
            "quarantine",
            f"level {first.level}, queue offset {first.queue_offset}: not a pending message",
            len(unknown_entries),
        )
    if not len(quarantined):
        return
    side = SideEntries("source", root, quarantined.entries(settings.precision_ms))
    everything = np.ones(BUCKETS, np.bool_)
    records = jobs.run("quarantine", [side], buckets=everything)["source"].found
    sound = records["number"][records["complaint"] == Complaint.NONE]
    with open_log(root) as reader:
        sound = [
            number
            for number in sound
            if not _is_at_a_limit(reader, quarantined, int(number), _most_bytes(settings))
        ]
    if sound:
        level, queue_offset = (quarantined.level[sound[0]], quarantined.queue_offset[sound[0]])
        what = (
            f"level {level}, queue offset {queue_offset}: nothing is wrong with its message;"
            " convert anew, with --whole-log where its entry leads nowhere"
        )
        yield Problem("quarantine", what, len(sound))


def _most_bytes(settings: ConversionSettings) -> int:
    """From so many bytes on a record may be too long for the target."""
    asked = settings.max_message_bytes or _TOO_LARGE_BYTES
    most_bytes = min(_TOO_LARGE_BYTES, asked, settings.commit_log_file_bytes)
    return most_bytes - _NEAR_A_LIMIT_BYTES


def _is_at_a_limit(
    reader: SegmentReader, messages: PendingMessages, number: int, most_bytes: int
) -> bool:
    size_bytes = int(messages.size_bytes[number])
    if size_bytes > most_bytes or len(str(messages.due_ms[number])) != _OUT_DIGITS:
        return True
    try:
        data = reader.read_at(int(messages.commit_log_offset[number]), size_bytes)
        message = decode_message_at(data)
        properties = dict(split_entries(message.properties_text))
        check_topic(properties[REAL_TOPIC.encode()].decode())
        is_odd = int(properties[REAL_QUEUE_ID.encode()]) > QUEUE_ID_MAX
        if is_odd or any(map(host_problem, (message.born_host, message.store_host))):
            return True
    except (FormatError, ValueError, KeyError):
        return True
    return not message.body or len(message.properties_text) > _LONG_PROPERTIES_BYTES


def own_entries(entries: NDArray[np.void], share: Share | None) -> NDArray[np.void]:
    """The rows of TARGET_ENTRY that belong to a source.

    Rows without a queue entry (-1) belong to no source; they are included for every source, so that
    they are reported as unexpected.
    """
    if share is None:
        return entries
    offsets = entries["queue_offset"]
    is_own = offsets < 0
    for first, end in share:
        is_own |= (offsets >= first) & (offsets < end)
    return marked_rows(entries, is_own)


def are_all_shares(shares: Iterable[Share | None], entries: NDArray[np.void]) -> bool:
    """Whether these shares are all of a target's queue."""
    lengths = [end - first for share in set(filter(None, shares)) for first, end in share]
    return sum(lengths) == int(entries["queue_offset"].max(initial=-1)) + 1


def share_problems(root: StoreRoot, entries: NDArray[np.void]) -> Iterator[Problem]:
    """Shares that overlap or leave gaps in the target's queue: verifying every source would then
    not verify every message.
    """
    shares = [share_in(table) for table in read_marker(root)["sources"]]
    expected = 0
    for first, end in sorted(run for share in shares for run in share):
        if first != expected:
            what = f"the messages of one source begin at {first} and should at {expected}"
            yield Problem(CONVERSION_NAME, what)
        expected = end
    queue_length = int(entries["queue_offset"].max(initial=-1)) + 1
    if expected != queue_length:
        what = f"its sources have {expected} messages and the target's queue {queue_length}"
        yield Problem(CONVERSION_NAME, what, abs(expected - queue_length))


def read_pending(
    root: StoreRoot, settings: ConversionSettings, *, whole_log: bool = True
) -> PendingMessages:
    """The pending messages of the chosen levels, in the order of the log.

    ``whole_log`` also finds messages whose queue was lost: the conversion may not have searched for
    them. Raises what ``read_backlog`` raises: SourceError, PlanError, FormatError.
    """
    text = settings.level_table
    backlog = read_backlog(
        root.path,
        offsets_choice=settings.offsets,
        level_table=None if text is None else DelayLevels.parse(text),
        after_crash=settings.after_crash,
        whole_log=whole_log,
    )
    pending = PendingMessages(
        commit_log_offset=backlog.commit_log_offset,
        size_bytes=backlog.size_bytes,
        level=backlog.level,
        queue_offset=backlog.queue_offset,
        due_ms=backlog.due_ms,
    )
    if not settings.only_levels:
        return pending
    return pending.chosen(np.isin(pending.level, settings.only_levels))


def split_quarantined(
    pending: PendingMessages, root: StoreRoot, settings: ConversionSettings
) -> tuple[PendingMessages, PendingMessages, list[BadRecord]]:
    """The pending messages to find, those in quarantine, and listed entries that are not pending.

    An entry that leads nowhere is listed as it stands in its queue, although the whole log may show
    which message it belongs to. That message is in quarantine with it, unless it was converted as
    one that is in the log alone.
    """
    wanted, quarantined, unknown_entries = _split_listed(pending, settings.quarantined)
    if not unknown_entries or settings.whole_log:
        return wanted, quarantined, unknown_entries
    seen = read_pending(root, settings, whole_log=False)
    _, _, unknown = _split_listed(seen, settings.quarantined)
    found = pending.chosen(~np.isin(pending.commit_log_offset, seen.commit_log_offset))
    queue_offsets = zip(found.level.tolist(), found.queue_offset.tolist(), strict=True)
    offsets = dict(zip(queue_offsets, found.commit_log_offset.tolist(), strict=True))
    listed = {(one.level, one.queue_offset): one for one in settings.quarantined}
    for one in set(unknown_entries).difference(unknown):
        key = one.level, one.queue_offset
        if key in offsets:
            listed[key] = attrs.evolve(one, commit_log_offset=offsets[key])
    wanted, quarantined, _ = _split_listed(pending, tuple(listed.values()))
    return wanted, quarantined, unknown
