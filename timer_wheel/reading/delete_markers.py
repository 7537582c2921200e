# SPDX-License-Identifier: Apache-2.0
"""Recall: which messages the delete markers on a wheel take away.

A marker is itself a timed message, due with its target, and names the target's key. One of ours may
name the first record of its target too, and then takes nothing else here. It works in the
slot where both lie in the end. A message that rolls ends in the slot of its TIMER_OUT_MS, and so
does a marker. The marker's text is the plain UNIQ_KEY up to 5.3.1 and from 5.4 on. It is topic +
``+`` + UNIQ_KEY in 5.3.2 and 5.3.3, and with 5.4's `appendTopicForTimerDeleteKey`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import BadFieldError
from message_store.files.segments import SegmentReader
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX, parse_long
from message_store.format.message import StoredMessage
from message_store.format.properties import (
    CANCELLED_OFFSET,
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_OUT_MS,
    TIMER_ROLL_LABEL,
    TIMER_ROLL_TIMES,
    offset_of_text,
)
from message_store.redelivery.lineage import first_offset
from timer_wheel.format.checkpoint import TIMER_CHECKPOINT_NAME, decode_own, decode_timer_checkpoint
from timer_wheel.format.older_slots import EXACT_MS, NO_OLDER_SLOTS, OlderSlots
from timer_wheel.format.wheel_math import Int64Array, floor_ms
from timer_wheel.reading.pending_timers import PendingTimers, pending_records


@attrs.frozen(eq=False)
class Cancelled:
    """Which rows are messages that a marker takes away: by the plain key, by topic and key; and
    ``recalled_at``, where in the log a marker in either form is that was stored behind them, or
    ``LONG_MAX``.
    """

    by_key: NDArray[np.bool_]
    by_topic_and_key: NDArray[np.bool_]
    recalled_at: Int64Array

    @property
    def recalled(self) -> NDArray[np.bool_]:
        """Which of them a marker takes away that was stored behind them."""
        is_it: NDArray[np.bool_] = self.recalled_at < LONG_MAX
        return is_it

    def rows(self, chosen: NDArray[np.bool_]) -> "Cancelled":
        """The same of some of the rows."""
        by_topic_and_key, recalled_at = self.by_topic_and_key[chosen], self.recalled_at[chosen]
        return Cancelled(self.by_key[chosen], by_topic_and_key, recalled_at)

    def for_broker(self, topic_in_delete_key: bool | None) -> NDArray[np.bool_]:
        """What a broker with that setting does not deliver; None: what somebody recalled."""
        if topic_in_delete_key is None:
            return self.recalled
        return self.by_topic_and_key if topic_in_delete_key else self.by_key


def delete_key(message: StoredMessage, *, with_topic: bool) -> str | None:
    """What a marker must say to take this message away; None when nothing can."""
    key = message.unique_key
    return f"{message.real_topic}+{key}" if key and with_topic else key


def cancelled(
    timers: PendingTimers,
    commit_log: SegmentReader,
    *,
    now_ms: int,
    precision_ms: int,
) -> Cancelled:
    """Which rows are messages that a marker among the rows takes away, in either form. One whose
    two keys differ is damaged: a broker obeys it, and nobody recalled what it names.

    A message in the queue that is due before the slot of ``now_ms`` is never placed: such a marker
    has no effect, and such a message is delivered. Records are read only where a marker makes it
    necessary; with rolling markers that is every rolling message.
    """
    count = len(timers)
    found = Cancelled(np.zeros(count, bool), np.zeros(count, bool), np.full(count, LONG_MAX))
    is_placed = (timers.position >= 0) | timers.is_in_timeline
    is_placed |= timers.slot_time_ms >= floor_ms(now_ms, precision_ms)
    markers = timers.rows(timers.is_marker & is_placed)
    marks: dict[tuple[int | None, str | None], list[StoredMessage]] = {}
    obeyed = set()
    for end_ms, is_over, message in _with_end_slots(markers, commit_log, precision_ms):
        if message is not None:
            mark = end_ms, message.properties.get(TIMER_DELETE_UNIQUE_KEY)
            marks.setdefault(mark, [])
            if not is_over:
                obeyed.add(mark)
            if marker_problem(message) is None:
                marks[mark].append(message)
    if not marks:
        return found
    slots = np.array([end_ms for end_ms, _ in marks if end_ms is not None], np.int64)
    may_meet = np.isin(floor_ms(timers.slot_time_ms, precision_ms), slots) | timers.is_roll
    candidates = np.flatnonzero(may_meet & is_placed & ~timers.is_marker)
    ends = _with_end_slots(timers.rows(candidates), commit_log, precision_ms)
    for row, (end_ms, is_over, message) in zip(candidates.tolist(), ends, strict=True):
        for is_cancelled, with_topic in ((found.by_key, False), (found.by_topic_and_key, True)):
            key = None if message is None else delete_key(message, with_topic=with_topic)
            if message is None or None in (key, end_ms) or (end_ms, key) not in marks:
                continue
            is_cancelled[row] = (end_ms, key) in obeyed and not is_over
            taken_by = [first_offset(each) for each in marks[end_ms, key] if _takes(each, message)]
            if taken_by:
                found.recalled_at[row] = max(taken_by)
    return found


def _takes(marker: StoredMessage, message: StoredMessage) -> bool:
    """Whether a marker takes a message of its slot: one of its topic and key that was scheduled
    before it, and the named one if it names one. A message that a broker rolled may be that.
    """
    if _named_by(marker) != (message.real_topic, message.unique_key):
        return False
    scheduled_at, named = _scheduled_at(message), marker.properties.get(CANCELLED_OFFSET)
    is_named = named is None or scheduled_at < 0 or offset_of_text(named) == scheduled_at
    return is_named and scheduled_at < first_offset(marker)


def _scheduled_at(message: StoredMessage) -> int:
    """Where in the log a message was scheduled; -1 where a broker rolled it, and nothing tells."""
    offset = first_offset(message)
    has_rolled = not message.properties.keys().isdisjoint({TIMER_ROLL_TIMES, TIMER_ROLL_LABEL})
    return -1 if has_rolled and offset == message.commit_log_offset else offset


def _with_end_slots(
    timers: PendingTimers, commit_log: SegmentReader, precision_ms: int
) -> Iterator[tuple[int | None, bool, StoredMessage | None]]:
    """The record of each row with the slot where it ends up, None for what is not told; and whether
    that is before the slot from which it rolls: a broker never places it again.
    """
    records = pending_records(commit_log, timers)
    for slot_time_ms, is_roll, message in zip(
        timers.slot_time_ms.tolist(), timers.is_roll.tolist(), records, strict=True
    ):
        end_ms: int | None = slot_time_ms
        if is_roll and message is not None:
            end_ms = _out_ms(message)
        if end_ms is None:
            yield None, False, message
        else:
            end_ms = floor_ms(end_ms, precision_ms)
            yield end_ms, end_ms < floor_ms(slot_time_ms, precision_ms), message


def _out_ms(message: StoredMessage) -> int | None:
    try:
        return parse_long(message.properties.get(TIMER_OUT_MS, ""))
    except BadFieldError:
        return None


MARKER_BODY, MARKER_TAGS = b"0", "_RECALL_TAG_"
MARKER_FLAG = int.from_bytes(b"del0")
"""The flag of a marker of ours. It lies in the head of the record, before the body: damage that
takes both tags and key leaves it, or takes the out time too.
"""


def is_of_cancel(message: StoredMessage) -> bool:
    """Whether a record has the body and the tags that a cancel gives its delete marker (RocketMQ:
    RecallMessageProcessor#buildMessage), or the flag that ours gives it. Where a separator was
    damaged more follows the tags.
    """
    is_tagged = (message.tags or "").startswith(MARKER_TAGS)
    return message.body == MARKER_BODY and (is_tagged or message.flag == MARKER_FLAG)


def marker_problem(marker: StoredMessage | None) -> str | None:
    """What is wrong with the record of a unit or an entry that says that it is a delete marker."""
    if marker is None:
        return "a delete marker whose record is not there"
    text, key = marker.properties.get(TIMER_DELETE_UNIQUE_KEY), marker.unique_key
    if text is None:
        return "a delete marker that names no message"
    if offset_of_text(marker.properties.get(CANCELLED_OFFSET, "0")) is None:
        return "a delete marker that names a damaged offset"
    if not key or not is_of_cancel(marker) or text in (key, f"{marker.real_topic}+{key}"):
        return None
    return f"a delete marker of {key!r} that names {text!r}"


@attrs.frozen
class SlotWidths:
    """How wide the slots of one wheel are, and how wide they were for older records."""

    precision_ms: int
    older: OlderSlots = NO_OLDER_SLOTS

    @classmethod
    def of(cls, root: StoreRoot, precision_ms: int) -> "SlotWidths":
        """The widths that the checkpoint of a wheel in files tells. Raises SourceError."""
        content = read_small_file(root.config_file(TIMER_CHECKPOINT_NAME)) or b""
        own = decode_own(content, decode_timer_checkpoint(content)).own
        return cls(precision_ms, NO_OLDER_SLOTS if own is None else own.older)

    def slot_end_ms(self, message: StoredMessage) -> int | None:
        """When the slot ends that a record was stored for; None where its TIMER_OUT_MS is none."""
        out_ms = _out_ms(message)
        if out_ms is None:
            return None
        widths_ms = (*self.older.widths_ms, self.precision_ms)
        number = int(self.older.number_of(np.array([first_offset(message)], np.int64))[0])
        width_ms = widths_ms[number]
        return out_ms + 1 if width_ms == EXACT_MS else floor_ms(out_ms, width_ms) + width_ms

    def later_ends_ms(self, end_ms: int) -> set[int]:
        """The end of a slot, and what each change of the width may have made of it."""
        ends_ms = self.older.moved(end_ms)
        return ends_ms | {-(-each // self.precision_ms) * self.precision_ms for each in ends_ms}


def recalled_pairs(
    messages: Iterable[StoredMessage], markers: Iterable[StoredMessage], widths: SlotWidths
) -> Iterator[tuple[StoredMessage, StoredMessage]]:
    """Messages and a marker that takes each away, whether their records have units or not: it names
    topic, key and slot of the message, and was stored behind it.
    """
    by_key: defaultdict[tuple[str, str], list[StoredMessage]] = defaultdict(list)
    for marker in markers:
        if marker_problem(marker) is None:
            by_key[_named_by(marker)].append(marker)
    for message in messages:
        end_ms = widths.slot_end_ms(message)
        if end_ms is None or not message.unique_key:
            continue
        ends_ms = widths.later_ends_ms(end_ms)
        for marker in by_key.get((message.real_topic, message.unique_key), ()):
            if _takes(marker, message) and widths.slot_end_ms(marker) in ends_ms:
                yield message, marker


def _named_by(marker: StoredMessage) -> tuple[str, str]:
    """Topic and key of the messages that a marker takes away, in either form of its text."""
    topic, text = marker.real_topic, marker.properties.get(TIMER_DELETE_UNIQUE_KEY, "")
    is_whole = text == marker.unique_key  # also a key that begins with the topic
    return topic, text if is_whole else text.removeprefix(f"{topic}+")
