# SPDX-License-Identifier: Apache-2.0
"""``import delaywheel``: all names, nothing loaded early, stores opened by what lies in them."""

import subprocess
import sys
from pathlib import Path

import pytest

import delaywheel
from delaywheel import AfterMs, ManualClock, Message, errors, open_store
from tests.source_laws import ROOT

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
