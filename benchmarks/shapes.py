# SPDX-License-Identifier: Apache-2.0
"""What records of other shapes cost a conversion: a bad one, CRC properties on all, odd properties
on some, and the log of a DLedger member; in turns with plain ones, in the same run.

The stores differ in nothing else. Each is read once, and then they take turns, round by round,
beginning with another one each time. The first round is thrown away. Targets are not verified here.
"""

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql import SparkSession

from benchmarks.bars import BAR_MESSAGES, PLAIN
from benchmarks.convert import convert_round, read_once, require_room
from benchmarks.machine import RESULTS, facts, keeping, tell
from benchmarks.member import move_into_member
from legacy_levels.generate.messages import ExtraProperty
from legacy_levels.generate.store import generate_level_store
from message_store.base.clock import SystemClock, stopwatch_s
from message_store.files.store_root import StoreRoot
from message_store.format.message_codec import decode_message_at
from message_store.format.properties import CRC32, TIMER_ROLL_TIMES
from migrate.spark.session import spark_session

_DISK_BYTES_A_MESSAGE = 2_800
"""Five sources and a target."""
_MINUTES = 15.0
_HEAD_BYTES = 64 << 10


@attrs.frozen
class Shape:
    """How the records of a store differ from plain ones."""

    extra_property: ExtraProperty | None = None
    has_a_bad_record: bool = False
    is_member: bool = False
    """Of a DLedger group: a head is in front of each record."""


SHAPES: Mapping[str, Shape] = {
    PLAIN: Shape(),
    "one bad record": Shape(has_a_bad_record=True),
    "1 % odd sizes": Shape(ExtraProperty(TIMER_ROLL_TIMES, "3", percent=1)),
    "the log of a DLedger member": Shape(is_member=True),
    "a CRC property on every record": Shape(ExtraProperty(CRC32, "0123456789")),
}
"""The dearest last: what was measured before is kept, whenever a run ends."""


def make_source(path: Path, messages: int, shape: Shape) -> None:
    """A store of such records, in the page cache."""
    source = path / "source"
    generate_level_store(
        source,
        messages=messages,
        now_ms=SystemClock().now_ms(),
        dialect="5.x",
        extra_property=shape.extra_property,
    )
    if shape.has_a_bad_record:
        damage_first_body(source)
    if shape.is_member:
        move_into_member(source)
    read_once(source)


def damage_first_body(source: Path) -> None:
    """Flip a bit in the body of the first record of the log."""
    log = min(StoreRoot(source).commit_log.iterdir())
    with log.open("r+b") as file:
        head = file.read(_HEAD_BYTES)
        body = decode_message_at(head, 0).body
        file.seek(head.index(body))
        file.write(bytes([body[0] ^ 1]))


def measure(
    place: Path,
    messages: int,
    rounds: int,
    spark: SparkSession,
    until_s: float,
    found: dict[str, list[dict[str, float]]],
) -> None:
    """All rounds, one at least; ``found`` takes those of each shape."""
    for name, shape in SHAPES.items():
        tell(f"making the store: {name}")
        make_source(place / name, messages, shape)
    names = list(SHAPES)
    for number in range(rounds + 1):
        if number > 1 and stopwatch_s() > until_s:
            break
        tell(f"round {number} of {rounds}")
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            took = convert_round(place / name, spark, on_bad_record="quarantine")
            wanted = messages - SHAPES[name].has_a_bad_record
            if took["converted"] != wanted:
                raise RuntimeError(f"{name}: {took['converted']} of {wanted} were converted")
            if number:
                found[name].append(took)
    for name in names:
        shutil.rmtree(place / name)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=BAR_MESSAGES)
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--minutes", type=float, default=_MINUTES)
    parser.add_argument("--directory", type=Path, help="where to work; 12 GB for 4 million")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    until_s = stopwatch_s() + options.minutes * 60
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        require_room(place, options.messages, _DISK_BYTES_A_MESSAGE)
        measured: dict[str, Any] = {
            "facts": facts(place),
            "messages": options.messages,
            "shapes": {shape: [] for shape in SHAPES},
        }
        with spark_session() as spark, keeping("shapes", measured, options.results):
            measure(place, options.messages, options.rounds, spark, until_s, measured["shapes"])


if __name__ == "__main__":
    main()
