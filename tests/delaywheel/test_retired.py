# SPDX-License-Identifier: Apache-2.0
"""What verbs say of a source that was retired, and of a store whose change was stopped: which one,
for what, and the whole command that ends it.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from delaywheel.terminal.render import fleet as fleet_text
from delaywheel.terminal.render import text
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.reading.unfinished_change import UNDOING, refuse_unfinished_change
from migrate.changes.note import all_changes_of, unfinished_change
from migrate.changes.retire import retire
from migrate.changes.undo import roll_back
from migrate.convert import convert
from migrate.fleet import Fleet
from migrate.settings import TargetSettings
from migrate.verify.verify import verify
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.migrate.conversions import options_for
from tests.migrate.in_place_stores import do, tree
from tests.migrate.stops import Stopped, stopping_before

NOW_MS = T0 + 500
ITEMS = [LevelMessage(level=3), LevelMessage(level=3), LevelMessage(level=5)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "the source", ITEMS)
    return tmp_path / "the source"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def converted(store: Path, name: str = "target", **more: Any) -> Path:
    target = store.parent / name
    convert(options_for(store.parent, source=store, target=target, now_ms=NOW_MS, **more))
    return target


def stop_in_the_middle(store: Path, change: Callable[[], object]) -> None:
    """As far as the first file beside the note, so that the change is begun and not done."""
    with (
        pytest.raises(Stopped),
        stopping_before(store, lambda _: unfinished_change(StoreRoot(store)) is not None),
    ):
        change()


# --- verify ---------------------------------------------------------------------------------------


def test_verify_says_that_its_source_was_retired(store: Path) -> None:
    target = converted(store)
    retire(store, target, execute=True)
    result = run("verify", store, target)
    assert (result.exit_code, result.stdout) == (cli.SOURCE_UNREADABLE, "")
    assert f"{store}: was retired for {target} on 20" in result.stderr
    assert f"`delaywheel rollback '{store}' --execute`" in result.stderr
    assert f"`delaywheel verify {target}`" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    roll_back(StoreRoot(store), execute=True)
    assert verify(store, target, spark=None).is_clean


def test_what_was_retired_for_one_target_does_not_keep_from_verifying_another(
    store: Path,
) -> None:
    first = converted(store, "first", only_levels=[3])
    second = converted(store, "second", only_levels=[5])
    retire(store, first, execute=True)
    assert verify(store, second, spark=None).is_clean
    with pytest.raises(SourceError, match=r"was retired for .*first"):
        verify(store, first, spark=None)


def test_a_target_of_what_an_earlier_one_has_names_the_earlier(store: Path) -> None:
    first, second = converted(store, "first"), converted(store, "second")
    retire(store, first, execute=True)
    with pytest.raises(SourceError, match=r"was retired for .*first"):
        verify(store, second, spark=None)


def test_a_source_that_is_half_retired_is_not_verified(store: Path) -> None:
    target = converted(store)
    stop_in_the_middle(store, lambda: retire(store, target, execute=True))
    result = run("verify", store, target)
    assert (result.exit_code, result.stdout) == (cli.SOURCE_UNREADABLE, "")
    assert "stopped in its middle" in result.stderr


# --- converting again -----------------------------------------------------------------------------


def test_a_conversion_after_a_retirement_says_where_everything_is(store: Path) -> None:
    first = converted(store, "first")
    retire(store, first, execute=True)
    report = convert(
        options_for(store.parent, source=store, target=store.parent / "second", now_ms=NOW_MS)
    )
    assert report.total("converted") == 0
    [warning] = report.warnings
    assert warning.startswith(f"{store}: was retired for {first} on 20")
    assert f"`delaywheel rollback '{store}' --execute` undoes that" in warning
    assert not [line for line in text.what_next(report, NOW_MS) if "again" in line]


def test_levels_that_were_not_retired_are_converted_without_a_word(store: Path) -> None:
    retire(store, converted(store, "first", only_levels=[3]), execute=True)
    options = options_for(
        store.parent, source=store, target=store.parent / "rest", now_ms=NOW_MS, only_levels=[5]
    )
    report = convert(options)
    assert (report.total("converted"), report.warnings) == (1, ())
    assert [line for line in text.what_next(report, NOW_MS) if "again" in line]


def test_a_retirement_that_was_taken_back_is_forgotten(store: Path) -> None:
    retire(store, converted(store, "first"), execute=True)
    roll_back(StoreRoot(store), execute=True)
    options = options_for(store.parent, source=store, target=store.parent / "second", now_ms=NOW_MS)
    assert convert(options).warnings == ()


def test_many_stores_say_it_too(store: Path) -> None:
    retire(store, converted(store, "first"), execute=True)
    target = store.parent / "targets" / "again"
    fleet = Fleet([options_for(store.parent, source=store, target=target, now_ms=NOW_MS)])
    fleet.examine()
    fleet.convert(None, lambda *_: None)
    [warning] = fleet_text.fleet_warnings(fleet.entries, NOW_MS)
    assert warning.startswith(f"again: {store}: was retired for ")
    assert not [line for line in fleet_text.fleet_next(fleet.entries) if "deliver" in line]


def test_in_place_says_it_too(store: Path) -> None:
    retire(store, converted(store, "first"), execute=True)
    result = run("convert", "--in-place", store)
    assert "nothing waits in the levels that were asked for" in result.stdout
    assert "was retired for" in result.stderr


# --- what was stopped -----------------------------------------------------------------------------


def commands_of(store: Path) -> tuple[list[str], list[str]]:
    """How a stopped change is finished, and how it is undone, as they are told."""
    with pytest.raises(SourceError) as refusal:
        refuse_unfinished_change(StoreRoot(store))
    finish, undo = re.findall(r"`delaywheel (.*?)`", str(refusal.value))
    return shlex.split(finish), shlex.split(undo)


@pytest.mark.parametrize("way", ["finish", "undo"])
def test_the_commands_that_end_a_stopped_retirement_can_be_copied(store: Path, way: str) -> None:
    target = converted(store)
    before = tree(store)
    stop_in_the_middle(store, lambda: retire(store, target, execute=True))
    finish, undo = commands_of(store)
    assert finish == ["retire", str(store), "--converted-to", str(target), "--execute"]
    assert undo == ["rollback", str(store), "--execute"]
    result = run(*(finish if way == "finish" else undo))
    assert result.exit_code == cli.DONE, result.output
    refuse_unfinished_change(StoreRoot(store))
    assert (tree(store) == before) is (way == "undo")


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({}, []),
        (
            {
                "only_levels": (3, 5),
                "on_bad_record": "quarantine",
                "offsets": "main",
                "level_table": DelayLevels.parse(),
                "settings": TargetSettings(precision_ms=500),
            },
            [
                "--only-level=3",
                "--only-level=5",
                "--precision-ms=500",
                f"--level-table={DelayLevels.parse().text()}",
                "--on-bad-record=quarantine",
                "--offsets=main",
            ],
        ),
    ],
)
def test_the_command_that_finishes_a_conversion_in_place_can_be_copied(
    store: Path, more: dict[str, Any], flags: list[str]
) -> None:
    stop_in_the_middle(store, lambda: do(store, NOW_MS, **more))
    finish, undo = commands_of(store)
    assert finish == ["convert", "--in-place", str(store), *flags, "--execute"]
    assert undo == ["rollback", str(store), "--execute"]
    result = run(*finish)
    assert result.exit_code == cli.DONE, result.output
    refuse_unfinished_change(StoreRoot(store))


def test_a_configuration_that_was_given_is_asked_for(store: Path) -> None:
    settings = TargetSettings(max_message_bytes=1 << 20)
    stop_in_the_middle(store, lambda: do(store, NOW_MS, settings=settings))
    assert "--target-conf=FILE" in commands_of(store)[0]


def test_a_rollback_that_was_stopped_is_gone_on_with(store: Path) -> None:
    do(store, NOW_MS)
    root = StoreRoot(store)
    with (
        pytest.raises(Stopped),
        stopping_before(store, lambda _: all_changes_of(root)[-1].state == UNDOING),
    ):
        roll_back(root, execute=True)
    with pytest.raises(SourceError, match=r"go on with `delaywheel rollback '.*' --execute`$"):
        refuse_unfinished_change(StoreRoot(store))
