# SPDX-License-Identifier: Apache-2.0
"""Writes into a store what no honest writer would: numbers at the edges of their range, where its
files hold numbers, and separators and digits where records hold text.

Damage at random seldom hits a length or an offset; kernels read memory by them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from message_store.format.layout import Layout
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.format.record_layout import head_layout, runs
from tests.faults.damage import Damage, data_ranges
from timer_wheel.format.timer_log import TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT

_EDGES = [
    edge + near
    for edge in (0, 20, 52, 91, 2**7, 2**15, 2**16, 2**31, 2**32, 2**62, 2**63)
    for near in (-1, 0, 1)
]
_TEXT_BYTES = b"\x00\x01\x02+-0189:\xc3\xff"
_UNITS = {"consumequeue": QUEUE_UNIT, "timerlog": TIMER_UNIT, "timerwheel": SLOT}
_PAGE = 4_096

Span = tuple[int, int]
"""Where in a file something begins, and how many bytes it has."""


def lie_once(store: Path, rng: random.Random) -> Damage:
    """Write a few lies into one file that holds records or units, or into any other number."""
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size > 8)
    path = rng.choice(files)
    numbers, texts = _spans(store, path)
    place = 0
    for _ in range(rng.choice([1, 1, 2, 5])):
        is_text = bool(texts) and rng.random() < 0.3
        if not is_text and not numbers:
            break
        place, length = rng.choice(texts if is_text else numbers)
        with path.open("r+b", buffering=0) as file:
            if is_text:
                place += rng.randrange(max(1, length))
                file.seek(place)
                file.write(bytes([rng.choice(_TEXT_BYTES)]))
            else:
                file.seek(place)
                said = int.from_bytes(file.read(length), "big")
                file.seek(place)
                file.write(_lie(said, length, rng))
    return Damage(str(path.relative_to(store)), "lie", place)


def _lie(said: int, length: int, rng: random.Random) -> bytes:
    edge = rng.choice(_EDGES)
    near = said + rng.randint(-100, 100)
    told = rng.choice([edge, -edge, said + edge, said - edge, near])
    return (told % (1 << (8 * length))).to_bytes(length, "big")


def _spans(store: Path, path: Path) -> tuple[list[Span], list[Span]]:
    """Where a file holds numbers, and where text."""
    parts = path.relative_to(store).parts
    unit = next((unit for name, unit in _UNITS.items() if name in parts), None)
    if parts[0] == "commitlog":
        return _of_records(path.read_bytes())
    if unit:
        return list(_of_units(path, unit)), []
    content = path.read_bytes()[: 1 << 16]
    numbers = [(at, 8) for at in range(0, len(content) - 8, 4)]
    return numbers, [(0, len(content))]


def _of_units(path: Path, unit: Layout) -> Iterator[Span]:
    lengths = {field.name: unit.dtype[field.name].itemsize for field in unit.fields}
    with path.open("rb") as file:
        for first, last in data_ranges(file.fileno()):
            file.seek(first - first % unit.size)
            content = file.read(last - first + unit.size)
            for start in range(0, len(content) - unit.size + 1, unit.size):
                if content[start : start + unit.size].strip(b"\0"):
                    for name, length in lengths.items():
                        yield first - first % unit.size + start + unit.offset_of(name), length


def _of_records(content: bytes) -> tuple[list[Span], list[Span]]:
    numbers: list[Span] = []
    texts: list[Span] = []
    place = 0
    while place + 88 <= len(content):
        head = head_layout(0)
        values = head.decode_at(content, place)
        if values["size_bytes"] < 91 or place + values["size_bytes"] > len(content):
            break
        numbers += [
            (place + head.offset_of(field.name), head.dtype[field.name].itemsize)
            for field in head.fields
        ]
        at = place + head.size
        for run in runs(values["magic"]):
            length = run.length.decode_at(content, at)["length"]
            numbers += [(at, run.length.size)] * 3
            at += run.length.size
            texts.append((at, length))
            at += length
        place += values["size_bytes"]
    return numbers, texts
