# SPDX-License-Identifier: Apache-2.0
"""A conversion for tests that stop it: its source, how it is asked for, and what it comes to when
nothing stops it.
"""

from pathlib import Path

from migrate.convert import convert
from migrate.settings import ConvertOptions
from tests.independent.level_messages import Item, LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import broker_files, options_for

MARKER = "delaywheel/conversion.json"

ITEMS: list[Item] = [
    *(LevelMessage(level=number % 4 + 1, body=bytes(number * 20)) for number in range(12)),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "0")]),
    LevelMessage(level=3, without=["REAL_TOPIC"]),
    LevelMessage(level=18, topic="TopicB"),
]


def asked(tmp_path: Path, target: str = "target") -> ConvertOptions:
    """The conversion of ``tmp_path / "source"`` in many small parts."""
    return options_for(
        tmp_path, on_bad_record="quarantine", part_bytes=1500, target=tmp_path / target
    )


def made(tmp_path: Path) -> ConvertOptions:
    """The same, its source made."""
    build_level_store(tmp_path / "source", ITEMS)
    return asked(tmp_path)


def never_stopped(tmp_path: Path) -> dict[str, str]:
    """The files of a conversion that nothing stopped."""
    options = asked(tmp_path, "never-stopped")
    convert(options)
    return broker_files(options.target)
