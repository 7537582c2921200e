# SPDX-License-Identifier: Apache-2.0
"""Takes Markdown pages apart into fenced blocks, and console blocks into commands with output."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    """One fenced block of a page: its language, its text, and the line where it starts."""

    page: str
    line: int
    language: str
    text: str


@attrs.frozen
class Command:
    """One command of a console block, and the output shown below it."""

    line: str
    output: str


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(path.name, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def commands_in(text: str) -> Iterator[Command]:
    """Lines that begin with ``$ `` (continued by a backslash), each with what stands below it."""
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = piece.replace("\\\n", "").partition("\n")
        yield Command(" ".join(command.split()), output)
