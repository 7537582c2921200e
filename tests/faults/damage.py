# SPDX-License-Identifier: Apache-2.0
"""Damages one file of a store at random, and copies stores whose files are mostly holes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import attrs

KINDS = ("flip", "garble", "zero", "cut", "grow", "empty", "gone")
_PAGE = 4_096


@attrs.frozen
class Damage:
    """What was done to which file, and where."""

    name: str
    kind: str
    place: int


def copy_store(source: Path, target: Path) -> None:
    """The same files, holes and all."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as whole, copy.open("wb", buffering=0) as file:
                for start, end in data_ranges(whole.fileno()):
                    file.seek(start)
                    file.write(os.pread(whole.fileno(), end - start, start))
                file.truncate(path.stat().st_size)


def flip(path: Path, at: int, bit: int) -> None:
    """Flip a bit of the byte at this place of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Where a file is not a hole."""
    position, size = 0, os.fstat(descriptor).st_size
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:
            return
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, position


def used_ranges(path: Path) -> list[tuple[int, int]]:
    """Pages of a file that hold anything: where damage can matter."""
    used = []
    with path.open("rb") as file:
        for start, end in data_ranges(file.fileno()):
            for page in range(start, end, _PAGE):
                data = os.pread(file.fileno(), min(_PAGE, end - page), page)
                last = len(data.rstrip(b"\0"))
                if last:
                    first = len(data) - len(data.lstrip(b"\0"))
                    used.append((page + first, page + last))
    return used


def damage_one(store: Path, rng: random.Random) -> Damage:
    """Damage one file, chosen with all others alike, in one of the ways."""
    path = rng.choice(sorted(path for path in store.rglob("*") if path.is_file()))
    return damage_file(store, path, rng.choice(KINDS), rng)


def damage_file(store: Path, path: Path, kind: str, rng: random.Random) -> Damage:
    """Damage this file in this way, at a place where something is."""
    first, last = rng.choice(used_ranges(path) or [(0, path.stat().st_size + 1)])
    place = rng.randrange(first, max(first + 1, last))
    with path.open("r+b", buffering=0) as file:
        file.seek(place)
        if kind == "flip":
            found = file.read(1) or b"\0"
            file.seek(place)
            file.write(bytes([found[0] ^ (1 << rng.randrange(8))]))
        elif kind == "garble":
            file.write(rng.randbytes(rng.randint(1, 64)))
        elif kind == "zero":
            file.write(bytes(rng.choice([1, 8, 52, 600, _PAGE])))
        elif kind == "cut":
            file.truncate(place)
        elif kind == "grow":
            file.seek(0, os.SEEK_END)
            file.write(rng.randbytes(rng.choice([1, 20, 5_000])))
        elif kind == "empty":
            file.truncate(0)
    if kind == "gone":
        path.unlink()
    return Damage(str(path.relative_to(store)), kind, place)
