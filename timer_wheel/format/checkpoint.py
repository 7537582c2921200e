# SPDX-License-Identifier: Apache-2.0
"""``config/timercheck``: how far the wheel's hand, its log and its queue have come.

It is written once a second and lags behind by that much. A missing file is a file of zeros, which
to a broker means: place every message of the timer queue again.

Behind the numbers of a broker stands our own part. The broker's numbers are as new as the last
advance: a broker that takes over after a kill repeats little. After a loss of power they may be
newer than the deliveries that they tell of. Our part says what was on disk at the last flush, and
since when records of the log name what is on the wheel. It counts only while the broker's
numbers are those that we wrote beside it. It is written twice, each time with a checksum and the
broker's seven numbers. So damage to any byte of the file is noticed and costs nothing.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import attrs

from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.java_numbers import LONG_MAX
from message_store.format.layout import Field, Layout
from timer_wheel.format.older_slots import (
    MEANING_OF_WIDTHS,
    MOST_WIDTHS,
    NO_OLDER_SLOTS,
    OlderSlots,
)
from timer_wheel.format.wheel_math import PRECISIONS_MS

TIMER_CHECKPOINT_NAME = "timercheck"
TIMER_CHECKPOINT_FILE_BYTES = 4096

TIMER_CHECKPOINT = Layout(
    "timer checkpoint",
    (
        Field("last_read_time_ms", "i64", "slots before it are done (lastReadTimeMs)"),
        Field("flush_position", "i64", "timer log position that was durable by then"),
        Field("last_queue_offset", "i64", "timer queue entries placed (lastTimerQueueOffset)"),
        Field("master_queue_offset", "i64", "the same on the master; resuming never goes beyond"),
        Field("state_version", "i64", "dataVersion.stateVersion"),
        Field("timestamp_ms", "i64", "dataVersion.timestamp"),
        Field("counter", "i64", "dataVersion.counter"),
    ),
)


@attrs.frozen
class TimerCheckpoint:
    """The seven numbers of the file, by the names of its layout."""

    last_read_time_ms: int = 0
    flush_position: int = 0
    last_queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0


def encode_timer_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    """The whole file: the numbers, then zeros."""
    numbers = TIMER_CHECKPOINT.encode(**attrs.asdict(checkpoint))
    return numbers.ljust(TIMER_CHECKPOINT_FILE_BYTES, b"\0")


def decode_timer_checkpoint(content: bytes) -> TimerCheckpoint:
    """The numbers of a file of any length: a broker fills up a short one with zeros."""
    padded = content[: TIMER_CHECKPOINT.size].ljust(TIMER_CHECKPOINT.size, b"\0")
    return TimerCheckpoint(**TIMER_CHECKPOINT.decode_at(padded, 0))


def read_timer_checkpoint(root: StoreRoot) -> TimerCheckpoint:
    """The checkpoint of a store; zeros when there is none. Raises SourceError."""
    content = read_small_file(root.config_file(TIMER_CHECKPOINT_NAME))
    return decode_timer_checkpoint(content or b"")


OWN_PLACES = (64, 256)
"""Where the two copies begin: in one sector with the numbers of a broker, which is written at once.
"""
UNKNOWN = -1
NEVER_REACHED = 1 << 48
"""No time, offset or count of a store comes this far: it is the year 10889, and 256 TiB."""

_OF_BROKER = "broker_"
_RECORDS_BEFORE = "commit log offset before which records are of"

OWN_CHECKPOINT = Layout(
    "timer checkpoint, our own part",
    (
        *(
            Field(f"{_OF_BROKER}{field.name}", field.kind, "the broker's number, once more")
            for field in TIMER_CHECKPOINT.fields
        ),
        Field("flushed_hand_ms", "i64", "slots before it are done, and that is on disk"),
        Field("names_from", "i64", "commit log offset from which on records name what was done"),
        Field("precision_ms", "i64", "the width of a slot, which is written nowhere else"),
        Field("log_begins", "i64", "timer log position before which everything is superseded"),
        Field("flushed_position", "i64", "timer log position up to which units are on disk"),
        Field("foreign_until", "i64", "commit log offset before which others delivered; 0: nobody"),
        Field("parked_until_ms", "i64", "the last slot that held what was to roll; 0: nothing was"),
        Field("older_until", "i64", f"{_RECORDS_BEFORE} older slots; 0: none"),
        Field("older_precision_ms", "i64", MEANING_OF_WIDTHS),
        *(
            Field(f"{name}_{number}", "i64", meaning)
            for number in range(1, MOST_WIDTHS)
            for name, meaning in (
                ("older_until", f"{_RECORDS_BEFORE} slots one change older; 0: none"),
                ("older_precision_ms", MEANING_OF_WIDTHS),
            )
        ),
        Field("format", "i64", "4: this table; earlier ones had other lengths or no such field"),
        Field("checksum", "i64", "CRC-32 of the bytes before it"),
    ),
)
_FORMAT = 4
_OF_OLDER = [("older_until", "older_precision_ms")] + [
    (f"older_until_{number}", f"older_precision_ms_{number}") for number in range(1, MOST_WIDTHS)
]
_WITHOUT_PARKED = OWN_CHECKPOINT.without(
    "timer checkpoint, our own part before it knew what was to roll",
    {"parked_until_ms", "format"},
)
_COPIES_FROM, *_SINCE_COPIES = (
    Field(name, "i64", "of an earlier version")
    for name in ("copies_from", "copies_hand_ms", "copies_position")
)
_OF_EARLIER = {"names_from": [_COPIES_FROM], "foreign_until": _SINCE_COPIES}
_WITHOUT_NAMES = Layout(
    "timer checkpoint, our own part before deliveries named their messages",
    tuple(field for now in _WITHOUT_PARKED.fields for field in _OF_EARLIER.get(now.name, [now])),
)
_WITH_ONE_WIDTH = _WITHOUT_NAMES.without(
    "timer checkpoint, our own part with one older width",
    {name for names in _OF_OLDER[1:] for name in names},
)
assert TIMER_CHECKPOINT.size <= OWN_PLACES[0]
assert OWN_PLACES[0] + OWN_CHECKPOINT.size <= OWN_PLACES[1]


@attrs.frozen
class OwnCheckpoint:
    """Where the hand was at the last flush, where names begin, how wide a slot is, where the timer
    log begins that counts, and where it ended when the hand was there.

    Names begin at the last moment when nothing in the slots ahead of the hand was done, or
    before: one too many does no harm (``redelivery.lineage``). Before ``foreign_until`` somebody
    else delivered, a broker or an earlier version, whose copies name nothing. Slots up to
    ``parked_until_ms`` may hold what is to roll, whatever their units say.

    ``older`` are slots of other widths, before the wheel was rebuilt.
    """

    flushed_hand_ms: int
    names_from: int
    precision_ms: int
    log_begins: int = 0
    flushed_position: int = 0
    foreign_until: int = 0
    parked_until_ms: int = 0
    older: OlderSlots = NO_OLDER_SLOTS

    @property
    def is_known(self) -> bool:
        """Whether it tells of the last flush: nobody else was here since."""
        return self.flushed_hand_ms != UNKNOWN


@attrs.frozen
class FoundCheckpoint:
    """What the file tells: the numbers of a broker, our own part, and where a broker may have
    brought the hand since.

    ``numbers`` are those that we wrote where only one of them differs. That is damage, or a broker
    that delivered and placed nothing, whose deliveries the log tells. They are also those that we
    wrote, or zeros, where one is what nobody writes. ``is_damaged`` says that a copy of our own
    part, or one of the numbers, is not what was written.
    """

    numbers: TimerCheckpoint
    own: OwnCheckpoint | None
    claimed_hand_ms: int
    is_damaged: bool


def encode_own(own: OwnCheckpoint, checkpoint: TimerCheckpoint) -> bytes:
    """The bytes of one copy."""
    numbers = {f"{_OF_BROKER}{name}": value for name, value in attrs.asdict(checkpoint).items()}
    rest = attrs.asdict(own, filter=lambda field, _: field.name != "older")
    fields = numbers | rest | _fields_of(own.older)
    checked_bytes = OWN_CHECKPOINT.offset_of("checksum")
    content = OWN_CHECKPOINT.encode(**fields, format=_FORMAT, checksum=0)[:checked_bytes]
    checksum = OWN_CHECKPOINT.part("checksum", "checksum").encode(checksum=zlib.crc32(content))
    return content + checksum


def _fields_of(older: OlderSlots) -> dict[str, int]:
    """Older slots as fields, the newest first."""
    fields = dict.fromkeys((name for names in _OF_OLDER for name in names), 0)
    known = zip(reversed(older.untils), reversed(older.widths_ms), strict=True)
    for names, values in zip(_OF_OLDER, known, strict=False):
        fields |= dict(zip(names, values, strict=True))
    return fields


def _older_of(fields: Mapping[str, int]) -> OlderSlots:
    known = [
        (fields[until], fields[width_ms])
        for until, width_ms in reversed(_OF_OLDER)
        if fields.get(until) and fields[width_ms] > 0
    ]
    return OlderSlots(tuple(until for until, _ in known), tuple(width for _, width in known))


def decode_own(content: bytes, checkpoint: TimerCheckpoint) -> FoundCheckpoint:
    """Our part of the file, and what the numbers of a broker are by it.

    When a broker was here since, or an earlier version wrote it, only what concerns the precision
    and where the log begins counts: what was delivered is told by copies, wherever they are.
    """
    copies = [_decode_copy(content, place) for place in OWN_PLACES]
    known = [copy for copy in copies if copy is not None]
    numbers = attrs.asdict(checkpoint)
    if not all(0 <= value < NEVER_REACHED for value in numbers.values()):
        written, own = known[0] if known else (TimerCheckpoint(), None)
        return FoundCheckpoint(written, own, written.last_read_time_ms, is_damaged=True)
    hand_ms = checkpoint.last_read_time_ms
    if not known:
        was_there = any(content[OWN_PLACES[0] : OWN_PLACES[-1] + OWN_CHECKPOINT.size])
        return FoundCheckpoint(checkpoint, None, hand_ms, is_damaged=was_there)
    written, own = known[0]
    differing = [name for name, value in numbers.items() if value != getattr(written, name)]
    if len(differing) > 1:
        return FoundCheckpoint(checkpoint, _unknown(own), hand_ms, is_damaged=None in copies)
    may_be_a_broker = hand_ms > written.last_read_time_ms
    is_damaged = None in copies or (bool(differing) and not may_be_a_broker)
    return FoundCheckpoint(written, own, hand_ms, is_damaged=is_damaged)


@attrs.frozen
class LastFlush:
    """The checkpoint, and where the hand was at the last flush: where the checkpoint has it, unless
    ``is_ours`` says that nobody else was here since. The timer log ended at ``position`` then, and
    begins at ``log_begins``. Records from ``names_from`` on name messages (``OwnCheckpoint``).
    Slots are ``precision_ms`` wide, 0 where we do not know.
    """

    checkpoint: TimerCheckpoint
    hand_ms: int
    is_ours: bool = False
    position: int = 0
    log_begins: int = 0
    names_from: int = LONG_MAX
    precision_ms: int = 0


def read_last_flush(root: StoreRoot) -> LastFlush:
    """What the file tells of it, by one read. Raises SourceError."""
    content = read_small_file(root.config_file(TIMER_CHECKPOINT_NAME)) or b""
    checkpoint = decode_timer_checkpoint(content)
    own, hand_ms = decode_own(content, checkpoint).own, checkpoint.last_read_time_ms
    if own is None or not own.is_known:
        return LastFlush(checkpoint, hand_ms)
    hand_ms = min(hand_ms, own.flushed_hand_ms)
    return LastFlush(
        checkpoint,
        hand_ms,
        is_ours=True,
        position=own.flushed_position,
        log_begins=own.log_begins,
        names_from=own.names_from,
        precision_ms=own.precision_ms,
    )


def checkpoint_damage(root: StoreRoot, now_ms: int) -> str | None:
    """What is wrong with the numbers that a broker believes, by our copies of them; None where
    nothing tells. A hand that is later than ours may be a broker's, but not later than ``now_ms``.
    Raises SourceError.
    """
    path = root.config_file(TIMER_CHECKPOINT_NAME)
    content = read_small_file(path) or b""
    numbers = decode_timer_checkpoint(content)
    found = decode_own(content, numbers)
    may_be_a_broker = found.claimed_hand_ms <= now_ms and not found.is_damaged
    if found.numbers == numbers or may_be_a_broker:
        return None
    return (
        f"{path}: damaged: a broker believes its numbers, which are not those that were written."
        " Open the store with its engine, which knows those, and close it"
    )


def _unknown(own: OwnCheckpoint) -> OwnCheckpoint:
    """What is left of it where somebody else may have delivered since."""
    of_the_wheel = ("precision_ms", "log_begins", "older")
    unknown = attrs.asdict(own, filter=lambda field, _: field.name not in of_the_wheel)
    numbers: dict[str, Any] = dict.fromkeys(unknown, UNKNOWN)
    return attrs.evolve(own, **numbers)


def _decode_copy(content: bytes, place: int) -> tuple[TimerCheckpoint, OwnCheckpoint] | None:
    """The numbers of a broker and our own that were written here; None where that is damaged."""
    layouts = (OWN_CHECKPOINT, _WITHOUT_PARKED, _WITHOUT_NAMES, _WITH_ONE_WIDTH)
    found = (_decode_whole(content, place, layout) for layout in layouts)
    fields = next((each for each in found if each is not None), None)
    if fields is None or fields["precision_ms"] not in PRECISIONS_MS:
        return None
    names = [field.name for field in TIMER_CHECKPOINT.fields]
    numbers = TimerCheckpoint(**{name: fields[f"{_OF_BROKER}{name}"] for name in names})
    own = {each.name: fields.get(each.name, UNKNOWN) for each in attrs.fields(OwnCheckpoint)[:-1]}
    known = OwnCheckpoint(**own, older=_older_of(fields))
    return numbers, known if "names_from" in fields else _unknown(known)


def _decode_whole(content: bytes, place: int, layout: Layout) -> dict[str, int] | None:
    """The fields that were written here in one of the layouts; None where that is damaged."""
    copy = content[place : place + layout.size]
    if len(copy) < layout.size:
        return None
    fields = layout.decode_at(copy, 0)
    checked = copy[: layout.offset_of("checksum")]
    is_it = fields.get("format", _FORMAT) == _FORMAT
    return fields if is_it and fields["checksum"] == zlib.crc32(checked) else None
