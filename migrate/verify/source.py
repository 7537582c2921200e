# SPDX-License-Identifier: Apache-2.0
"""What is pending in a source, as ``legacy_levels`` reads it, under the conversion's settings."""

from collections.abc import Iterable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import FormatError
from message_store.files.segments import SegmentReader
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import PROPERTIES_MAX_BYTES
from migrate.report.conversion_marker import CONVERSION_NAME, read_marker
from migrate.report.conversion_parameters import ConversionSettings, QuarantinedEntry
from migrate.verify.complaints import Complaint
from migrate.verify.entries import BUCKETS, SOURCE_ENTRY
from migrate.verify.jobs import DigestJobs, SideEntries
from migrate.verify.report import Problem
from timer_wheel.format.wheel_math import out_ms

_TOO_LARGE_BYTES = 4 << 20
_NEAR_A_LIMIT_BYTES = 300
_LONG_PROPERTIES_BYTES = PROPERTIES_MAX_BYTES - _NEAR_A_LIMIT_BYTES
"""Records near a limit may be set aside though nothing is wrong with them."""
_OUT_DIGITS = 13
"""A due time with more or fewer digits is none, and reason enough."""


@attrs.frozen(eq=False)
class PendingMessages:
    """The pending messages of a source: parallel arrays, in the order of its commit log."""

    commit_log_offset: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    level: NDArray[np.int64]
    queue_offset: NDArray[np.int64]
    due_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.commit_log_offset)

    def chosen(self, mask: NDArray[np.bool_]) -> "PendingMessages":
        """The messages for which ``mask`` is True."""
        return PendingMessages(
            *(getattr(self, field.name)[mask] for field in attrs.fields(PendingMessages))
        )

    def entries(self, precision_ms: int) -> NDArray[np.void]:
        """Rows of SOURCE_ENTRY."""
        rows = np.zeros(len(self), SOURCE_ENTRY.dtype)
        rows["commit_log_offset"] = self.commit_log_offset
        rows["size_bytes"] = self.size_bytes
        rows["queue_id"] = self.level - 1
        rows["queue_offset"] = self.queue_offset
        rows["out_ms"] = out_ms(self.due_ms, precision_ms)
        return rows


def split_quarantined(
    pending: PendingMessages, quarantined: tuple[QuarantinedEntry, ...]
) -> tuple[PendingMessages, PendingMessages, list[QuarantinedEntry]]:
    """The messages to be found, those set aside, and listed entries that are no pending message."""
    listed = {(one.level, one.queue_offset): one for one in quarantined}
    aside = np.zeros(len(pending), bool)
    for level in {level for level, _ in listed}:
        offsets = [queue_offset for at_level, queue_offset in listed if at_level == level]
        aside |= (pending.level == level) & np.isin(pending.queue_offset, offsets)
    strangers = dict(listed)
    for number in np.flatnonzero(aside):
        key = (int(pending.level[number]), int(pending.queue_offset[number]))
        if listed[key].commit_log_offset == pending.commit_log_offset[number]:
            del strangers[key]
        else:
            aside[number] = False
    return pending.chosen(~aside), pending.chosen(aside), list(strangers.values())


def quarantine_problems(
    jobs: DigestJobs,
    root: StoreRoot,
    aside: PendingMessages,
    strangers: list[QuarantinedEntry],
    settings: ConversionSettings,
) -> Iterator[Problem]:
    """Entries that were set aside without being pending, or without anything being wrong."""
    if strangers:
        first = strangers[0]
        yield Problem(
            "quarantine",
            f"level {first.level}, queue offset {first.queue_offset}: not a pending message",
            len(strangers),
        )
    if not len(aside):
        return
    side = SideEntries("source", root.commit_log, aside.entries(settings.precision_ms))
    everything = np.ones(BUCKETS, np.bool_)
    found = jobs.run("quarantine", [side], buckets=everything)["source"].found
    sound = found.numbers[found.complaints == Complaint.NONE]
    with SegmentReader(root.commit_log) as reader:
        sound = [number for number in sound if not _is_at_a_limit(reader, aside, int(number))]
    if sound:
        level, queue_offset = aside.level[sound[0]], aside.queue_offset[sound[0]]
        what = (
            f"level {level}, queue offset {queue_offset}: nothing is wrong with its message;"
            " convert anew, with --whole-log where its entry leads nowhere"
        )
        yield Problem("quarantine", what, len(sound))


def _is_at_a_limit(reader: SegmentReader, aside: PendingMessages, number: int) -> bool:
    size_bytes = int(aside.size_bytes[number])
    if size_bytes > _TOO_LARGE_BYTES or len(str(aside.due_ms[number])) != _OUT_DIGITS:
        return True
    try:
        data = reader.read_at(int(aside.commit_log_offset[number]), size_bytes)
        message = decode_message_at(data)
    except FormatError:
        return True
    return len(message.properties_text) > _LONG_PROPERTIES_BYTES


def own_entries(entries: NDArray[np.void], share: tuple[int, int] | None) -> NDArray[np.void]:
    """The rows of TARGET_ENTRY that belong to a source; those that no queue entry leads to, which
    are nobody's, are everybody's, so that they are found unexpected.
    """
    if share is None:
        return entries
    first, end = share
    offsets = entries["queue_offset"]
    return entries[(offsets < 0) | ((offsets >= first) & (offsets < end))]


def are_all_shares(shares: Iterable[tuple[int, int] | None], entries: NDArray[np.void]) -> bool:
    """Whether these shares are all of a target's queue."""
    lengths = [end - first for first, end in set(filter(None, shares))]
    return sum(lengths) == int(entries["queue_offset"].max(initial=-1)) + 1


def share_problems(root: StoreRoot, entries: NDArray[np.void]) -> Iterator[Problem]:
    """Shares that leave out or share messages of the target's queue, so that verifying every source
    would not be verifying every message.
    """
    shares = sorted(
        (int(one["target_queue_offset"]), int(one["converted"]))
        for one in read_marker(root)["sources"]
    )
    expected = 0
    for first, converted in shares:
        if first != expected:
            what = f"the messages of one source begin at {first} and should at {expected}"
            yield Problem(CONVERSION_NAME, what)
        expected = first + converted
    queue_length = int(entries["queue_offset"].max(initial=-1)) + 1
    if expected != queue_length:
        what = f"its sources have {expected} messages and the target's queue {queue_length}"
        yield Problem(CONVERSION_NAME, what, abs(expected - queue_length))


def read_pending(
    root: StoreRoot, settings: ConversionSettings, *, whole_log: bool = True
) -> PendingMessages:
    """The pending messages in the order of the log, of the levels that were asked for; unless it is
    the ``whole_log``, as a conversion sees them that does not look there.

    Raises what ``read_backlog`` raises: SourceError, PlanError, FormatError.
    """
    text = settings.level_table
    backlog = read_backlog(
        root.path,
        offsets_choice=settings.offsets,
        level_table=None if text is None else DelayLevels.parse(text),
        after_crash=settings.after_crash,
        whole_log=whole_log,  # what a lost queue once knew: the conversion may not have looked
    )
    pending = PendingMessages(
        commit_log_offset=backlog.commit_log_offset,
        size_bytes=backlog.size_bytes.astype(np.int64),
        level=backlog.level.astype(np.int64),
        queue_offset=backlog.queue_offset,
        due_ms=backlog.due_ms,
    )
    if not settings.only_levels:
        return pending
    return pending.chosen(np.isin(pending.level, settings.only_levels))


def split_aside(
    pending: PendingMessages, root: StoreRoot, settings: ConversionSettings
) -> tuple[PendingMessages, PendingMessages, list[QuarantinedEntry]]:
    """The messages to be found, those set aside, and listed entries that are no pending message.

    An entry that leads nowhere was set aside as it stands in its queue, though the whole log may
    tell which message is its own. That one was set aside with it, unless it was converted as one
    that is in the log alone.
    """
    wanted, aside, strangers = split_quarantined(pending, settings.quarantined)
    if not strangers or settings.whole_log:
        return wanted, aside, strangers
    seen = read_pending(root, settings, whole_log=False)
    _, _, unknown = split_quarantined(seen, settings.quarantined)
    found = pending.chosen(~np.isin(pending.commit_log_offset, seen.commit_log_offset))
    places = zip(found.level.tolist(), found.queue_offset.tolist(), strict=True)
    offsets = dict(zip(places, found.commit_log_offset.tolist(), strict=True))
    listed = {(one.level, one.queue_offset): one for one in settings.quarantined}
    for one in set(strangers).difference(unknown):
        place = one.level, one.queue_offset
        if place in offsets:
            listed[place] = attrs.evolve(one, commit_log_offset=offsets[place])
    wanted, aside, _ = split_quarantined(pending, tuple(listed.values()))
    return wanted, aside, unknown
