# SPDX-License-Identifier: Apache-2.0
"""What a conversion set aside and somebody put back: real brokers deliver it, once and in time."""

from pathlib import Path
from typing import Any, Final

import pytest

from migrate.convert import convert
from migrate.quarantine.kept import Quarantine
from migrate.quarantine.restore import RestoreOptions, restore_records
from migrate.settings import ConvertOptions, TargetSettings
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.interop.conftest import MakeBroker
from tests.interop.jars import LAST
from tests.interop.judge import Judge, Received
from tests.interop.stages import SMALL_FILES, now_ms

TOPIC: Final = "OrderTimeout"
GOOD: Final = 4
BAD: Final = 3
DELAY_MS: Final = 30_000
SIZES: Final[dict[str, Any]] = {"commit_log_file_bytes": 1 << 20, "queue_file_bytes": 40_000}
# The broker of a store by hand has no group yet; its topics come with the store.
SETTINGS: Final = {**SMALL_FILES, "autoCreateTopicEnable": "false"}


def messages(count: int, **wrong: Any) -> list[LevelMessage]:
    stored_ms = now_ms() - 5_000
    return [
        LevelMessage(level=4, topic=TOPIC, store_timestamp_ms=stored_ms + n, **wrong)
        for n in range(count)
    ]


def quarantined(path: Path) -> Path:
    """A fresh target in which four messages wait. Three lie aside whose DELAY is another's, and one
    without a body: no 5.x broker delivers it. 4.9 does, and its push consumer never gets past it.
    """
    text = "".join(
        f"{name}\x01{value}\x02"
        for name, value in (("REAL_TOPIC", TOPIC), ("DELAY", "7"), ("mine", "x"), ("REAL_QID", "0"))
    )
    bodiless = messages(1, body=b"", extra_pairs=[("mine", "x")])
    items = [*messages(GOOD), *messages(BAD, raw_properties=text.encode()), *bodiless]
    build_level_store(path / "source", items, topics={TOPIC: 1}, **SIZES)
    options = ConvertOptions(
        source=path / "source",
        target=path / "target",
        settings=TargetSettings(timer_log_file_bytes=102_400, **SIZES),
        on_bad_record="quarantine",
    )
    assert convert(options).total("quarantined") == BAD + 1
    return path / "target"


def receive(broker: Any, judge: Judge, count: int) -> list[Received]:
    with (
        broker,
        judge.consume([TOPIC], "readers", expect=count, deadline_s=90, settle_s=4) as readers,
    ):
        return readers.wait()


@pytest.mark.parametrize(
    ("version", "engine"),
    [
        pytest.param("5.5.0", "wheel", marks=[pytest.mark.check, pytest.mark.interop("5.5.0")]),
        pytest.param("4.9.7", "levels", marks=[pytest.mark.nightly, pytest.mark.interop("4.9.7")]),
        pytest.param(LAST, "wheel", marks=[pytest.mark.nightly, pytest.mark.interop(LAST)]),
    ],
)
def test_records_that_were_put_back_are_delivered_once_and_in_time(
    version: str, engine: str, make_broker: MakeBroker, scratch: Path
) -> None:
    target = quarantined(scratch / f"put-back-{version}")
    store = target
    if engine == "levels":
        store = scratch / f"put-back-{version}" / "levels"
        build_level_store(store, messages(GOOD), topics={TOPIC: 1}, **SIZES)
    records = Quarantine(target).records
    only = [each.file for each in records if engine == "wheel" or "no body" not in each.reason]
    options = RestoreOptions(quarantine=target, store=store, only=tuple(only))
    report = restore_records(options, execute=True)
    assert (report.engine, len(report.put_back)) == (engine, BAD)
    assert len(report.in_the_way) == len(only) - BAD
    broker = make_broker(version, store, settings=SETTINGS)
    received = receive(broker, Judge(broker, scratch / f"put-back-judge-{version}"), GOOD + BAD)
    assert len(received) == GOOD + BAD
    mine = [each for each in received if each.properties.get("mine") == "x"]
    assert len(mine) == BAD
    due_ms = {row.promised_ms or 0 for row in report.put_back}
    assert min(each.stored_ms for each in mine) >= min(due_ms)
    assert max(each.stored_ms for each in mine) <= max(due_ms) + 30_000
