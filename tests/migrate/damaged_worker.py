# SPDX-License-Identifier: Apache-2.0
"""What a migration does with a store, done with one that is harmed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq

from message_store import ManualClock
from message_store.base.errors import DelayStoreError
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.report.report import ConversionReport
from migrate.settings import ConvertOptions, TargetSettings
from migrate.table.export import export_parquet
from migrate.table.pending_table import TableOptions
from migrate.verify.verify import VerifyOptions, verify, verify_alone
from tests.faults.damage import copy_store
from tests.faults.harm_rounds import run_rounds
from tests.independent.level_messages import Item
from tests.independent.level_store_builder import (
    T0,
    DeliveredCopy,
    LevelMessage,
    OrdinaryMessage,
    build_level_store,
    retry_message,
)
from tests.migrate.conversions import assert_books_add_up, checked_target
from timer_wheel import HierarchicalWheelStore, WheelStore

NOW_MS = T0 + 3_600_500
LATER_MS = NOW_MS + 3 * 3_600_000
LOG_BYTES, QUEUE_BYTES, TIMER_BYTES = 16 << 10, 50 * 20, 40 * 52 + 16
TARGET = TargetSettings(
    commit_log_file_bytes=LOG_BYTES, queue_file_bytes=QUEUE_BYTES, timer_log_file_bytes=TIMER_BYTES
)
OWN = StoreSettings(
    commit_log_file_bytes=LOG_BYTES, queue_file_bytes=QUEUE_BYTES, timer_log_file_bytes=TIMER_BYTES
)
PRISTINE = "stores"
"""The folder beside the copies, with the stores as they were."""
TOPICS = ("TopicA", "TopicB", "%RETRY%group_a")
_RESIDENT_KIB = 2 << 20

_DONE = [LevelMessage(level=level, body=b"done %d" % level) for level in (1, 3, 5)]
_ITEMS: list[Item] = [
    *_DONE,
    *(
        LevelMessage(
            level=number % 18 + 1,
            body=b"body %d " % number + b"x" * (number % 7 * 60),
            topic=TOPICS[number % 2],
            keys=f"key{number}",
            compress_body=number % 11 == 0,
            store_timestamp_ms=T0 + 500 * number,
        )
        for number in range(90)
    ),
    OrdinaryMessage(topic="TopicA", body=b"at once"),
    *(retry_message(level=4, body=b"again %d" % number) for number in range(4)),
    *(DeliveredCopy(of=done) for done in _DONE),
]


@attrs.frozen
class Shape:
    """A kind of store; harm is done to the source, or to the ``target`` of its conversion."""

    build: dict[str, Any]
    after_crash: bool = False
    to: str | None = None
    in_place: bool = False


_STORED: dict[str, Any] = {
    "offsets": {1: 1, 3: 1, 5: 1},
    "commit_log_file_bytes": LOG_BYTES,
    "queue_file_bytes": 5 * 20,
}
SHAPES = {
    "levels of 4.9": Shape({}),
    "levels of 5.x": Shape({"dialect": "5.5"}),
    "levels with longer tags codes": Shape({"queue_ext": True}),
    "levels of 5.x, killed": Shape(
        {"dialect": "5.5", "abort": True, "indexed_items": 80, "offsets": {1: 0, 3: 1, 5: 0}},
        after_crash=True,
    ),
    "levels put in place": Shape({"dialect": "5.5"}, in_place=True),
    "a wheel": Shape({}, to="wheel"),
    "a hierarchical wheel": Shape({"dialect": "5.5"}, to="hierarchy"),
}


@attrs.frozen
class Outcome:
    """What came of a harmed store: verbs that refused, each with its sentence; broken promises; and
    whatever must never be raised.
    """

    refused: dict[str, str] = attrs.field(factory=dict)
    told: dict[str, Any] = attrs.field(factory=dict)
    wrong: list[str] = attrs.field(factory=list)
    crashes: list[str] = attrs.field(factory=list)


def build(shape: Shape, root: Path) -> None:
    """A source, and what its conversion left."""
    build_level_store(root / "source", _ITEMS, **{**_STORED, **shape.build})
    if shape.in_place:
        convert_in_place(_in_place(root / "source", (18,)), execute=True)
    else:
        convert(_options(shape, root / "source", root / "target"))


def _options(shape: Shape, source: Path, target: Path, **more: Any) -> ConvertOptions:
    facts: dict[str, Any] = {"now_ms": NOW_MS, "settings": TARGET}
    facts |= {"after_crash": shape.after_crash, "to": shape.to or "wheel"} | more
    return ConvertOptions(source=source, target=target, **facts)


def _in_place(store: Path, levels: tuple[int, ...] = (), **more: Any) -> ConvertOptions:
    facts: dict[str, Any] = {"now_ms": NOW_MS, "only_levels": levels} | more
    return ConvertOptions(source=store, target=store, **facts)


def copy_with_times(source: Path, target: Path) -> None:
    """The same files, holes, times and all."""
    copy_store(source, target)
    give_times(source, target)


def give_times(source: Path, target: Path) -> None:
    """A disk that lies does not tell when it did."""
    for path in source.rglob("*"):
        copy, facts = target / path.relative_to(source), path.stat()
        if copy.is_file():
            os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))


class Round:
    """One harmed store, and all that is done with it."""

    def __init__(self, shape: Shape, root: Path) -> None:
        self.shape = shape
        self.root = root
        self.harmed = root / ("target" if shape.to else "source")
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for look in (self.inspect, self.check, self.pending, self.export, self.plan_in_place):
            self._attempt(look.__name__, look)
        if self.shape.in_place:
            self._attempt("rollback", self.rollback)
        else:
            self._attempt("retire", self.retire)
        if self.shape.to:
            self._attempt("verify", self.verify)
            self._attempt("verify_alone", self.verify_alone)
            self._attempt("drain", self.drain)
        else:
            self._attempt("convert", self.convert(on_bad_record="fail"))
            whole = self.convert(on_bad_record="quarantine", whole_log=True)
            self._attempt("convert_whole_log", whole)
        return self.outcome

    def _attempt(self, name: str, call: Callable[[], object]) -> None:
        try:
            told = call()
        except DelayStoreError as error:
            self.outcome.refused[name] = f"{type(error).__name__}: {error}"
        except AssertionError as error:
            self.outcome.wrong.append(f"{name}: {error}"[:3_000])
        except Exception:
            self.outcome.crashes.append(f"{name}: {traceback.format_exc()}")
        else:
            self.outcome.told[name] = told

    def inspect(self) -> object:
        found = inspect_store(self.harmed, now_ms=NOW_MS).as_json()
        json.dumps(found)
        return found["pending"]

    def check(self) -> object:
        report = check_store(self.harmed, CheckOptions(now_ms=NOW_MS, disk_used=0.5))
        json.dumps(report.as_json())
        return sorted({found.code for found in report.findings})

    def pending(self) -> object:
        return sum(1 for _ in pending_messages(self.harmed, now_ms=NOW_MS))

    def export(self) -> object:
        out = self.root / "out.parquet"
        out.unlink(missing_ok=True)
        options = TableOptions(now_ms=NOW_MS, after_crash=self.shape.after_crash, include_body=True)
        export_parquet(self.harmed, out, options=options)
        return pq.read_metadata(out).num_rows

    def plan_in_place(self) -> None:
        convert_in_place(_in_place(self.harmed, after_crash=self.shape.after_crash))

    def rollback(self) -> None:
        roll_back(StoreRoot(self.harmed))

    def retire(self) -> object:
        report = retire(self.root / "source", self.root / "target")
        return {str(level): offset for level, offset in report.offsets.items()}

    def convert(self, **asked: Any) -> Callable[[], object]:
        def run() -> object:
            target = self.root / ("converted-" + "-".join(asked))
            options = _options(self.shape, self.harmed, target, **asked)
            try:
                report = convert(options)
            except DelayStoreError:
                assert not (target / "delaywheel/conversion.json").exists()
                raise
            assert_books_add_up(report)
            assert len(checked_target(options)) == report.total("converted")
            found = verify(self.harmed, target, spark=None, options=VerifyOptions(sample=20))
            is_told = any("--whole-log" in warning for warning in report.warnings)
            assert found.is_clean or (is_told and not options.whole_log), (found, report.warnings)
            bodies = _drained(self.shape, target)
            assert sum(bodies.values()) == report.total("converted"), bodies
            return _counts(report) | {"bodies": bodies}

        return run

    def verify(self) -> object:
        found = verify(
            self.root / "source", self.harmed, spark=None, options=VerifyOptions(sample=20)
        )
        json.dumps(found.as_json())
        return found.is_clean

    def verify_alone(self) -> object:
        return verify_alone(self.harmed, spark=None).is_clean

    def drain(self) -> object:
        return _drained(self.shape, self.harmed)


def _counts(report: ConversionReport) -> dict[str, Any]:
    names = ("queued", "already_delivered", "expired", "pending", "converted", "quarantined")
    return {name: report.total(name) for name in names} | {"warnings": list(report.warnings)}


def _drained(shape: Shape, target: Path) -> dict[str, int]:
    """What the engine delivers from a target: bodies, and how often each."""
    clock = ManualClock(NOW_MS)
    engine: Any = HierarchicalWheelStore if shape.to == "hierarchy" else WheelStore
    bodies: Counter[str] = Counter()
    with engine.open(target, clock=clock, settings=OWN) as store:
        clock.tick(LATER_MS - NOW_MS)
        store.advance(clock.now_ms())
        for topic in TOPICS:
            for queue in range(4):
                for message in store.topic(topic).read(queue, 0, 10_000):
                    bodies[message.body.decode("latin-1")[:40]] += 1
    return dict(bodies)


def _peak_kib() -> int:
    """The most memory that this program had. ``ru_maxrss`` would also count that of its parent,
    whose memory it was until it became a program of its own.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def exercise(shape: str, root: Path) -> Outcome:
    """All that is done with a copy of the stores of that shape."""
    give_times(root.with_name(PRISTINE), root)
    outcome = Round(SHAPES[shape], root).run()
    if _peak_kib() > _RESIDENT_KIB:
        outcome.wrong.append("it took more memory than such a store is worth")
    return outcome


if __name__ == "__main__":
    run_rounds(sys.argv[1:], exercise, lambda shape, copy: Round(SHAPES[shape], copy).harmed)
