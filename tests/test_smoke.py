# SPDX-License-Identifier: Apache-2.0
"""Everything once, in small: `make lowest` runs this on the lowest versions of all dependencies."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import cli
from migrate.convert import convert
from migrate.settings import ConvertOptions, TargetSettings
from migrate.verify.verify import verify
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.source_laws import product_sources

NOW_MS = T0 + 500
SMALL = TargetSettings(
    commit_log_file_bytes=65_536, queue_file_bytes=2_000, timer_log_file_bytes=10_240
)


class Verbs:
    """The command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> str:
        """What a verb prints on standard output."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words], prog_name="delaywheel")
        said = self._capsys.readouterr()
        assert ended.value.code == 0, said.err
        return said.out

    def lines(self, *words: object) -> list[dict[str, Any]]:
        """The objects that a verb prints, one a line."""
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def verbs(capsys: pytest.CaptureFixture[str]) -> Verbs:
    return Verbs(capsys)


@pytest.mark.check
def test_every_module_is_imported() -> None:
    names = [source.path.removesuffix(".py").replace("/", ".") for source in product_sources()]
    assert len(names) > 200
    for name in names:
        importlib.import_module(name.removesuffix(".__init__"))


def test_every_verb_has_help(verbs: Verbs) -> None:
    assert verbs("--version").startswith("delaywheel, version ")
    for name in cli.main.commands:
        assert "--json" in verbs(name, "--help")


@pytest.mark.parametrize("engine", ["levels", "wheel", "hierarchy"])
def test_an_engine_stores_cancels_delivers_and_lists(
    engine: str, verbs: Verbs, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    words = ("--topic", "orders", "--body", "x", "--after", "30s", "--engine", engine)
    first, second = (
        verbs.lines("schedule", store, *words, "--keys", key, "--now", NOW_MS)[0]
        for key in ("k1", "k2")
    )
    [found] = verbs.lines("pending", store, "--key", "k2", "--now", NOW_MS)
    assert found["unique_key"] == second["unique_key"]
    [cancelled] = verbs.lines("cancel", store, first["handle"], "--now", NOW_MS)
    assert cancelled["cancellation"] == "cancelled"
    assert json.loads(verbs("inspect", store, "--now", NOW_MS, "--json"))
    assert json.loads(verbs("check", store, "--now", NOW_MS, "--json"))
    due_ms = second["promised_ms"]
    [delivered] = verbs.lines("run", store, "--now", due_ms)
    [read] = verbs.lines("read", store, "orders", "--now", due_ms)
    assert delivered["keys"] == read["keys"] == ["k2"]


@pytest.mark.parametrize("to", ["wheel", "hierarchy"])
def test_a_store_is_converted_verified_and_exported(to: str, verbs: Verbs, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    build_level_store(source, [LevelMessage(level=level) for level in range(3, 12)])
    options = ConvertOptions(source=source, target=target, now_ms=NOW_MS, settings=SMALL, to=to)
    assert convert(options).total("converted") == 9
    assert verify(source, target, spark=None).is_clean
    for place in (source, target):
        out = tmp_path / f"{place.name}.parquet"
        verbs("export", place, out, "--include-body", "--now", NOW_MS)
        assert out.stat().st_size
        assert len(verbs.lines("pending", place, "--topic", "TopicA", "--now", NOW_MS)) == 9
    assert "9" in verbs("inspect", target, "--now", NOW_MS)
