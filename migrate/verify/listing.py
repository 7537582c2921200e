# SPDX-License-Identifier: Apache-2.0
"""Names what was found: the first few differences field by field, complaints in words, and a sample
looked up with the scalar codec alone.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.errors import FormatError
from message_store.files.log_row import open_log
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, TIMER_OUT_MS
from migrate.verify.compare import Comparison
from migrate.verify.digests.complaints import LAST_UNREADABLE, SENTENCES, Complaint
from migrate.verify.digests.entries import DIGEST_IDENTITY
from migrate.verify.digests.record_kernel import REMOVED_PROPERTIES
from migrate.verify.found import Found
from migrate.verify.jobs import SideEntries
from migrate.verify.report import SAMPLE, Difference, FieldDifference, Problem
from migrate.verify.tasks import DigestResult

_SHOWN_CHARS = 120

_FIELDS = (
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "store_host",
    "reconsume_times",
    "real_topic",
)
_REMOVED = frozenset(name.encode() for name in REMOVED_PROPERTIES)


def field_differences(
    source: StoredMessage, out_ms: int, target: StoredMessage, complaint: int = 0
) -> tuple[FieldDifference, ...]:
    """What of ``source`` did not survive in ``target``; ``out_ms`` is the slot time it should have.

    ``complaint`` is what the target's record was found guilty of.
    """
    return tuple(_differences(source, out_ms, target, complaint))


def _differences(
    source: StoredMessage, out_ms: int, target: StoredMessage, complaint: int
) -> Iterator[FieldDifference]:
    for name in _FIELDS:
        expected, actual = getattr(source, name), getattr(target, name)
        if expected != actual:
            yield FieldDifference(name, shown(expected), shown(actual))
    if source.body != target.body:
        yield FieldDifference("body", *_around_change(source.body, target.body))
    yield from _property_differences(source.properties_text, target.properties_text)
    found_out = target.properties.get(TIMER_OUT_MS)
    if found_out != str(out_ms):
        yield FieldDifference(TIMER_OUT_MS, str(out_ms), shown(found_out))
    if complaint:
        yield FieldDifference("record", "as written", SENTENCES[Complaint(complaint)])


def shown(value: object) -> str:
    """A value as text that is short and has no control characters."""
    if isinstance(value, bytes):
        text = ascii(value)[2:-1]
    else:
        text = "".join(
            char if char.isprintable() else ascii(char)[1:-1]
            for char in str(value)[: _SHOWN_CHARS + 1]
        )
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _around_change(expected: bytes, actual: bytes) -> tuple[str, str]:
    """The bytes around the first that differs, with its place."""
    pairs = zip(expected, actual, strict=False)
    index = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    index = min(len(expected), len(actual)) if index is None else index
    start = max(0, index - 8)
    texts = [
        f"{len(body)} bytes, at {index}: …{shown(body[start : index + 16])}…"
        for body in (expected, actual)
    ]
    return texts[0], texts[1]


def kept_entries(properties_text: bytes) -> list[bytes]:
    """The entries of a properties text that a conversion must leave as they are, in order."""
    entries = []
    for entry in properties_text.split(PROPERTY_SEPARATOR):
        name, separator, _ = entry.partition(NAME_VALUE_SEPARATOR)
        if entry and not (separator and name in _REMOVED):
            entries.append(entry)
    return entries


def _property_differences(expected: bytes, actual: bytes) -> Iterator[FieldDifference]:
    ours, theirs = kept_entries(expected), kept_entries(actual)
    if ours != theirs:
        lost = [entry for entry in ours if entry not in theirs]
        added = [entry for entry in theirs if entry not in ours]
        names = dict.fromkeys(entry.partition(NAME_VALUE_SEPARATOR)[0] for entry in lost + added)
        for name in names:
            sides = [
                b" ".join(e.partition(NAME_VALUE_SEPARATOR)[2] for e in side if _is_named(e, name))
                for side in (ours, theirs)
            ]
            yield FieldDifference(f"property {shown(name)}", shown(sides[0]), shown(sides[1]))
        if not names:
            yield FieldDifference("properties", shown(b" ".join(ours)), shown(b" ".join(theirs)))
    closed = [text.endswith(PROPERTY_SEPARATOR) for text in (expected, actual)]
    if closed[0] != closed[1]:
        yield FieldDifference("properties end with 0x02", str(closed[0]), str(closed[1]))


def _is_named(entry: bytes, name: bytes) -> bool:
    return entry.partition(NAME_VALUE_SEPARATOR)[0] == name


class RecordReader(ClosedOnExit):
    """Reads single records of a side by the number of their entry."""

    def __init__(self, side: SideEntries) -> None:
        self.side = side
        self._reader = open_log(side.store, side.file_bytes)

    def offset(self, number: int) -> int:
        """Where the record of an entry begins."""
        return int(self.side.entries["commit_log_offset"][number])

    def message(self, number: int) -> StoredMessage | None:
        """The record of an entry; None where none can be read. A wrong body CRC is read over."""
        size_bytes = int(self.side.entries["size_bytes"][number])
        try:
            data = self._reader.read_at(self.offset(number), max(0, size_bytes))
            return decode_message_at(data, check_crc=False)
        except FormatError:
            return None

    def at(self, offset: int) -> StoredMessage | None:
        """The record of the entry that begins at ``offset`` of the log."""
        offsets = self.side.entries["commit_log_offset"]
        return self.message(bisect_left(offsets, offset))  # NumPy would turn all its bytes around

    def close(self) -> None:
        """Give the files back."""
        self._reader.close()


def list_differences(
    comparison: Comparison, source: RecordReader, target: RecordReader, *, listed: int
) -> Iterator[Difference]:
    """The first ``listed`` of each kind, with the fields that differ."""
    for number, other, complaint in comparison.different_pairs[:listed].tolist():
        fields = _fields(source, number, target, other, complaint)
        where = _place(source, number)
        yield Difference("different", **where, target_offset=target.offset(other), fields=fields)
    for number in comparison.missing_numbers[:listed].tolist():
        yield Difference("missing", **_place(source, number))
    for number in comparison.unexpected_numbers[:listed].tolist():
        who = _who(target, number)
        yield Difference("unexpected", **who, target_offset=target.offset(number))


def _who(reader: RecordReader, number: int) -> dict[str, Any]:
    message = reader.message(number)
    if message is None:
        return {"topic": None, "unique_key": None}
    key = message.unique_key
    return {"topic": shown(message.real_topic), "unique_key": None if key is None else shown(key)}


def _place(source: RecordReader, number: int) -> dict[str, Any]:
    entry = source.side.entries[number]
    return _who(source, number) | {
        "level": int(entry["queue_id"]) + 1,
        "queue_offset": int(entry["queue_offset"]),
        "source_offset": int(entry["commit_log_offset"]),
    }


def _fields(
    source: RecordReader, number: int, target: RecordReader, other: int, complaint: int
) -> tuple[FieldDifference, ...]:
    ours, theirs = source.message(number), target.message(other)
    if ours is None or theirs is None:
        return ()
    out_ms = int(source.side.entries["out_ms"][number])
    return field_differences(ours, out_ms, theirs, complaint)


def complaint_problems(result: DigestResult, side: SideEntries) -> Iterator[Problem]:
    """Every complaint about records of a side, with its first example.

    A source's record may name another queue offset than its place in the queue, which a broker that
    rebuilt a queue leaves behind: readers go by the place.
    """
    harmless = {Complaint.LEFT_OUT}
    if side.side == "source":
        harmless.add(Complaint.QUEUE_OFFSET)
    for complaint, (count, numbers) in sorted(result.complaints.items()):
        if complaint in harmless:
            continue
        entry = side.entries[numbers[0]]
        where = f"record at {entry['commit_log_offset']}"
        if side.side == "source":
            where += f" (level {entry['queue_id'] + 1}, queue offset {entry['queue_offset']})"
        yield Problem(side.side, f"{where}: {SENTENCES[complaint]}", count)


def unreadable(result: DigestResult) -> int:
    """How many entries of a side lead to no record that can be compared."""
    return sum(
        count
        for complaint, (count, _) in result.complaints.items()
        if Complaint.LEFT_OUT < complaint <= LAST_UNREADABLE
    )


def sample_problems(
    sampled: Found, candidates: Found, source: RecordReader, target: RecordReader
) -> Iterator[Problem]:
    """Sampled messages that the scalar codec does not find unchanged in the target.

    ``candidates`` are the target's records with the identity of a sampled one.
    """
    lost = []
    identities = candidates["digests"][:, DIGEST_IDENTITY]
    for number, digests in zip(sampled["number"], sampled["digests"], strict=True):
        alike = candidates["number"][identities == digests[DIGEST_IDENTITY]]
        if not any(_is_same(source, int(number), target, int(other)) for other in alike):
            lost.append(int(number))
    if lost:
        what = f"the message at {source.offset(lost[0])} is not in the target unchanged"
        yield Problem(SAMPLE, what, len(lost))


def _is_same(source: RecordReader, number: int, target: RecordReader, other: int) -> bool:
    if source.message(number) is None or target.message(other) is None:
        return False
    return not _fields(source, number, target, other, 0)
