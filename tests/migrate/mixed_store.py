# SPDX-License-Identifier: Apache-2.0
"""A small store of several log files: levels, one message that was delivered, one without delay."""

from pathlib import Path
from typing import Any

from tests.independent.level_messages import DeliveredCopy, Item, LevelMessage, OrdinaryMessage
from tests.independent.level_store_builder import T0, build_level_store

_LATER = T0 + 10_010
FILE_BYTES = 4096


def mixed_items(count: int) -> list[Item]:
    """``count`` pending messages of three levels, some of other kinds before them, one behind."""
    first = LevelMessage(level=3, body=b"first")
    return [
        first,
        LevelMessage(level=5, body=b"x" * 700),
        OrdinaryMessage(body=b"y" * 900),
        DeliveredCopy(of=first),
        *(
            LevelMessage(level=4 + n % 3, body=b"%d" % n * 300, store_timestamp_ms=_LATER + n)
            for n in range(count)
        ),
        LevelMessage(level=18, body=b"last", store_timestamp_ms=_LATER + count),
    ]


def pending_in(items: list[Item]) -> int:
    """How many of these are pending: one was delivered."""
    return sum(isinstance(item, LevelMessage) for item in items) - 1


ITEMS = mixed_items(12)
PENDING = pending_in(ITEMS)


def build(root: Path, items: list[Item] = ITEMS, **more: Any) -> Path:
    """Write the store, with more of ``build_level_store``; gives back its root."""
    build_level_store(root, items, commit_log_file_bytes=FILE_BYTES, **more)
    return root


def state_of(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of everything below a directory."""
    return {
        path.relative_to(root).as_posix(): (facts.st_size, facts.st_mtime_ns)
        for path in sorted(root.rglob("*"))
        for facts in [path.lstat()]
    }
