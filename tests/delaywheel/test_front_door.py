# SPDX-License-Identifier: Apache-2.0
"""``import delaywheel``: all names, nothing loaded early, stores opened by what lies in them."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import delaywheel
from delaywheel import (
    AfterMs,
    DelayLevels,
    ManualClock,
    Message,
    MessageBatch,
    errors,
    open_store,
)
from message_store.writing.settings import StoreSettings
from tests.source_laws import ROOT
from timer_wheel.wheel.settings import WheelSettings

DAY_MS = 86_400_000
ENGINES = ("levels", "wheel", "hierarchy", "time-index")


def test_every_name_is_there() -> None:
    assert {name for name in delaywheel.__all__ if getattr(delaywheel, name) is None} == set()
    assert dir(delaywheel) == sorted(delaywheel.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Wheel'"):
        getattr(delaywheel, "Wheel")  # noqa: B009  what a type checker would refuse


def test_nothing_heavy_is_loaded_before_it_is_asked_for() -> None:
    heavy = {"numpy", "numba", "pyarrow", "pyspark", "click", "rocksdict"}
    program = f"import sys, delaywheel; print(sorted({heavy!r} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_opens_with_the_engine_that_made_it(engine: str, tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    path = tmp_path / "store"
    with open_store(path, engine=engine, clock=clock) as store:  # type: ignore[arg-type]
        kind = type(store)
        store.schedule(Message(topic="orders", body=b"A1"), AfterMs(1_000))
    clock.tick(5_000)
    with open_store(str(path), clock=clock) as store:
        assert type(store) is kind
        assert [delivered.message.body for delivered in store.advance(clock.now_ms())] == [b"A1"]


def test_a_new_store_needs_an_engine(tmp_path: Path) -> None:
    with pytest.raises(errors.OptionsError, match="neither levels nor a wheel"):
        open_store(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_second_engine_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", engine="levels", clock=ManualClock(1_000_000)) as store:
        store.schedule(Message(topic="orders", body=b"A1"), AfterMs(1_000))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(errors.OptionsError, match="is a store of the levels"):
        open_store(tmp_path / "store", engine="wheel")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_delay_ms": "24h"},
        {"max_delay_ms": -1},
        {"beyond_max": "delivr"},
        {"max_delay": 5},
        {"start_deliver_time": True},
        {"levels": "1s 5s"},
        {"clock": 1_000_000},
    ],
    ids=str,
)
def test_a_setting_that_nothing_has_is_refused_before_anything_is_made(
    engine: str, wrong: dict[str, Any], tmp_path: Path
) -> None:
    for opening in (
        lambda: open_store(tmp_path / "store", engine=engine, **wrong),  # type: ignore[arg-type]
        lambda: delaywheel.engine_class(engine).open(tmp_path / "store", **wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises((ValueError, TypeError), match="|".join(wrong)):
            opening()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_no_setting_of_an_engine_hides_behind_stars(engine: str) -> None:
    parameters = inspect.signature(delaywheel.engine_class(engine).open).parameters  # type: ignore[arg-type]
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    shared = inspect.signature(open_store).parameters.keys() - {"engine"}
    assert shared <= parameters.keys()


def test_rules_and_settings_beside_them_are_refused(tmp_path: Path) -> None:
    rules = WheelSettings.of_broker("5.5.0")
    with pytest.raises(errors.OptionsError, match="name none beside it"):
        delaywheel.WheelStore.open(tmp_path / "store", rules=rules, max_delay_ms=1)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.OptionsError, match="'whel' is no engine; these are: levels, wheel"):
        open_store(tmp_path / "store", engine="whel")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_delay_ms", [60_000, DAY_MS, 40 * DAY_MS])
def test_beyond_the_limit_a_message_is_refused_or_comes_at_once(
    engine: str, max_delay_ms: int, tmp_path: Path
) -> None:
    """The limits of the manual of 5.0, 24 hours and 40 days, and one within all engines' own."""
    clock = ManualClock(1_793_000_000_000)
    beyond = AfterMs(max_delay_ms + 60_000)
    table = DelayLevels.parse("1s 1m 24h 40d 41d")
    how: Any = {
        "engine": engine,
        "clock": clock,
        "levels": table,
        "max_delay_ms": max_delay_ms,
        "settings": StoreSettings(retention_ms=60 * DAY_MS),
    }
    message = Message("orders", b"A1")
    batch = MessageBatch.of([message, message])
    with open_store(tmp_path / "refuses", **how) as store:
        kept = store.schedule(message, AfterMs(max_delay_ms))
        assert kept.promised_ms == clock.now_ms() + max_delay_ms
        with pytest.raises(errors.UnsupportedDelayError, match="beyond the limit"):
            store.schedule(message, beyond)
        with pytest.raises(errors.UnsupportedDelayError, match="beyond the limit"):
            store.schedule_batch(batch, np.array([0, clock.now_ms() + beyond.delay_ms]))
        assert len(list(store.pending())) == 1
    with open_store(tmp_path / "delivers", beyond_max="deliver", **how) as store:
        assert store.schedule(message, beyond).promised_ms == clock.now_ms()
        due_ms = np.array([clock.now_ms() + max_delay_ms, clock.now_ms() + beyond.delay_ms])
        receipts = store.schedule_batch(batch, due_ms)
        assert receipts.promised_ms.tolist() == [due_ms[0], clock.now_ms()]
        assert len(store.advance(clock.now_ms())) == 2
        assert len(store.advance(int(due_ms[0]))) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_start_deliver_time_is_a_due_time_where_that_is_set(engine: str, tmp_path: Path) -> None:
    clock = ManualClock(1_793_000_000_000)
    at_ms = clock.now_ms() + 60_000
    asks = Message("orders", b"A1", properties={"__STARTDELIVERTIME": str(at_ms)})
    how: Any = {"engine": engine, "clock": clock}
    with open_store(tmp_path / "a", start_deliver_time_alias=True, **how) as store:
        assert store.put(asks).promised_ms == at_ms
        assert store.put_batch(MessageBatch.of([asks])).promised_ms.tolist() == [at_ms]
    with open_store(tmp_path / "b", **how) as store:
        assert store.put(asks).promised_ms == clock.now_ms()
    with delaywheel.MemoryStore(clock, start_deliver_time_alias=True) as memory:
        assert memory.put(asks).promised_ms == at_ms


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_leaves_another_s_messages_alone_says_so(
    engine: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    clock = ManualClock(1_793_000_000_000)
    other = "wheel" if engine in ("levels", "time-index") else "levels"
    with open_store(path, engine=other, clock=clock) as store:  # type: ignore[arg-type]
        store.schedule(Message("orders", b"A1"), AfterMs(1_000))
    Engine = delaywheel.engine_class(engine)  # type: ignore[arg-type]
    named = "a wheel" if other == "wheel" else "the levels"
    with pytest.warns(errors.OtherEngineWarning, match=f"messages may wait in {named}.*delaywheel"):
        Engine.open(path, clock=clock).close()
    with open_store(path, engine=other, clock=clock) as store:  # type: ignore[arg-type]
        assert len(store.advance(clock.now_ms() + 1_000)) == 1
