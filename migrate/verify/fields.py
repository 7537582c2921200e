# SPDX-License-Identifier: Apache-2.0
"""Two records field by field, by the scalar codec alone: what must survive, and what does not."""

from collections.abc import Iterator

from message_store.format.message import StoredMessage
from message_store.format.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, TIMER_OUT_MS
from migrate.verify.complaints import SENTENCES, Complaint
from migrate.verify.record_kernel import REMOVED_PROPERTIES
from migrate.verify.report import FieldDifference

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
        expected, found = getattr(source, name), getattr(target, name)
        if expected != found:
            yield FieldDifference(name, shown(expected), shown(found))
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


def _around_change(expected: bytes, found: bytes) -> tuple[str, str]:
    """The bytes around the first that differs, with its place."""
    pairs = zip(expected, found, strict=False)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
    place = min(len(expected), len(found)) if place is None else place
    start = max(0, place - 8)
    texts = [
        f"{len(body)} bytes, at {place}: …{shown(body[start : place + 16])}…"
        for body in (expected, found)
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


def _property_differences(expected: bytes, found: bytes) -> Iterator[FieldDifference]:
    ours, theirs = kept_entries(expected), kept_entries(found)
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
    closed = [text.endswith(PROPERTY_SEPARATOR) for text in (expected, found)]
    if closed[0] != closed[1]:
        yield FieldDifference("properties end with 0x02", str(closed[0]), str(closed[1]))


def _is_named(entry: bytes, name: bytes) -> bool:
    return entry.partition(NAME_VALUE_SEPARATOR)[0] == name
