# SPDX-License-Identifier: Apache-2.0
"""A conversion for tests that stop it: its source, how it is asked for, and what it comes to when
nothing stops it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from migrate.convert import convert
from migrate.settings import WHEEL, ConvertOptions
from tests.independent.level_messages import Item, LevelMessage
from tests.independent.level_store_builder import build_level_store
from tests.migrate.conversions import broker_files, options_for
from tests.migrate.stops import Stopped

MARKER = "delaywheel/conversion.json"

ITEMS: list[Item] = [
    *(LevelMessage(level=number % 4 + 1, body=bytes(number * 80 + 1)) for number in range(12)),
    LevelMessage(level=2, extra_pairs=[("__CRC32#", "0")]),
    LevelMessage(level=3, without=["REAL_TOPIC"]),
    LevelMessage(level=18, topic="TopicB"),
]


def stopping_at(stage: str) -> Callable[[str, int, int], None]:
    """Progress that stops the conversion when it comes to a stage; not in the thread that looks at
    how far the writers are, of which nobody would hear.
    """

    def stop(now: str, _done: int, _total: int) -> None:
        if now == stage and threading.current_thread() is threading.main_thread():
            raise Stopped

    return stop


def asked_merge(
    tmp_path: Path, sources: int, *, target: str = "target", engine: str = WHEEL
) -> list[ConvertOptions]:
    """The conversion of so many stores in ``tmp_path`` into one target, in many small files."""
    return [
        options_for(
            tmp_path,
            source=tmp_path / (f"source-{number}" if number else "source"),
            target=tmp_path / target,
            on_bad_record="quarantine",
            to=engine,
        )
        for number in range(sources)
    ]


def made_merge(tmp_path: Path, sources: int, **how: str) -> list[ConvertOptions]:
    """The same, its sources made; each but the first has fewer messages than the one before."""
    members = asked_merge(tmp_path, sources, **how)
    for number, options in enumerate(members):
        build_level_store(options.source, ITEMS[2 * number :])
    return members


def asked(tmp_path: Path, target: str = "target") -> ConvertOptions:
    """The conversion of one store in many small files."""
    return asked_merge(tmp_path, 1, target=target)[0]


def made(tmp_path: Path) -> ConvertOptions:
    """The same, its source made."""
    return made_merge(tmp_path, 1)[0]


def staged_of(target: Path) -> Path:
    """Where an unfinished conversion keeps what belongs to its plan."""
    staging = target / "delaywheel/staging"
    identity: str = json.loads((staging / "plan.json").read_bytes())["identity"]
    return staging / identity[:16]


def notes_of(target: Path) -> dict[int, Path]:
    """The note of each log file that an unfinished conversion has written, by its number."""
    notes = (staged_of(target) / "attempts").glob("*/note.json")
    return {json.loads(path.read_bytes())["number"]: path for path in sorted(notes)}


def never_stopped(tmp_path: Path) -> dict[str, str]:
    """The files of a conversion that nothing stopped."""
    options = asked(tmp_path, "never-stopped")
    convert(options)
    return broker_files(options.target)
