# SPDX-License-Identifier: Apache-2.0
"""What every verb says of a directory that may not be looked into: one sentence, no traceback."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result

import cli
from message_store.base.errors import SourceError
from message_store.files.small_files import is_directory, is_ordinary_file, is_present
from migrate.convert import convert
from tests.bare_root import SOMEBODY_ELSE, without_powers
from tests.independent.level_store_builder import LevelMessage, build_level_store
from tests.migrate.conversions import options_for

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="root alone can give a directory to somebody else"
)
HANDLE = "djEgb3JkZXJzIGJyb2tlci1hIDE3OTMwMDAwOTAwMDAgT1JERVItNDI="
SOURCE, TARGET = cli.SOURCE_UNREADABLE, cli.TARGET_UNWRITABLE


@attrs.frozen
class Places:
    """A store that anybody may read, its target, and a copy of the store that nobody may."""

    around: Path
    store: Path
    target: Path
    closed: Path


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with tempfile.TemporaryDirectory() as name:
        around = Path(name)
        build_level_store(around / "source", [LevelMessage(level=3)])
        build_level_store(around / "in" / "store", [LevelMessage(level=3)])
        convert(options_for(around))
        for closed in (around / "in", around / "in" / "store"):
            os.chown(closed, SOMEBODY_ELSE, SOMEBODY_ELSE)
        yield Places(around, around / "source", around / "target", around / "in" / "store")


Words = Callable[[Places], tuple[object, ...]]
CASES: dict[str, tuple[int, Words]] = {
    "inspect": (SOURCE, lambda at: (at.closed,)),
    "check": (SOURCE, lambda at: (at.closed,)),
    "pending": (SOURCE, lambda at: (at.closed,)),
    "export": (SOURCE, lambda at: (at.closed, at.around / "out.parquet")),
    "export, where to": (TARGET, lambda at: (at.store, at.closed / "out.parquet")),
    "quarantine": (SOURCE, lambda at: (at.closed,)),
    "put-back": (SOURCE, lambda at: (at.closed, at.closed)),
    "put-back, into": (SOURCE, lambda at: (at.target, at.closed)),
    "run": (SOURCE, lambda at: (at.closed,)),
    "schedule": (SOURCE, lambda at: (at.closed, "--topic", "t", "--body", "b", "--after", "1s")),
    "cancel": (SOURCE, lambda at: (at.closed, HANDLE)),
    "reschedule": (SOURCE, lambda at: (at.closed, HANDLE, "--after", "1s")),
    "trace": (SOURCE, lambda at: (at.closed, "K")),
    "state": (SOURCE, lambda at: (at.closed, "K")),
    "consume": (SOURCE, lambda at: (at.closed, "t", "--group", "g")),
    "groups": (SOURCE, lambda at: (at.closed,)),
    "dead-letters": (SOURCE, lambda at: (at.closed, "g")),
    "plain": (SOURCE, lambda at: (at.closed, at.around / "plain")),
    "read": (SOURCE, lambda at: (at.closed, "t")),
    "verify": (SOURCE, lambda at: (at.closed,)),
    "verify, its source": (SOURCE, lambda at: (at.closed, at.target)),
    "verify, its target": (SOURCE, lambda at: (at.store, at.closed)),
    "verify, its table": (
        TARGET,
        lambda at: (at.store, at.target, "--differences", at.closed / "table"),
    ),
    "retire": (SOURCE, lambda at: (at.closed, "--converted-to", at.target)),
    "retire, its target": (SOURCE, lambda at: (at.store, "--converted-to", at.closed)),
    "rollback": (SOURCE, lambda at: (at.closed,)),
    "convert": (SOURCE, lambda at: (at.closed, at.around / "new")),
    "convert, in place": (SOURCE, lambda at: (at.closed, "--in-place")),
    "convert, its target": (TARGET, lambda at: (at.store, at.closed)),
    "convert, its page": (
        TARGET,
        lambda at: (at.store, at.around / "new", "--report", at.closed / "page"),
    ),
    "convert, where many go": (TARGET, lambda at: (at.store, at.target, at.closed)),
    "convert, merged": (TARGET, lambda at: (at.store, at.target, at.closed, "--merge")),
    "generate": (TARGET, lambda at: (at.closed, "--messages", 1)),
}
"""By verb and what of it: the exit code, and its words."""


def run(case: str, places: Places) -> Result:
    _code, words = CASES[case]
    given = (case.split(",")[0], *words(places))
    return CliRunner().invoke(cli.main, [str(word) for word in given])


@pytest.mark.parametrize("what", ["the store", "what is around it", "what is in it"])
@pytest.mark.parametrize("case", CASES)
def test_a_closed_directory_is_said_in_a_sentence(case: str, what: str, places: Places) -> None:
    shut = {
        "the store": (places.closed, 0o700),
        "what is around it": (places.closed.parent, 0o700),
        "what is in it": (places.closed, 0o744),
    }
    path, mode = shut[what]
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with without_powers():
            result = run(case, places)
    finally:
        path.chmod(before)
    assert isinstance(result.exception, SystemExit), result.exception
    can_be_listed = case == "generate" and what == "what is in it"
    assert ("not empty" if can_be_listed else "Permission denied") in result.stderr
    assert str(places.closed.parent) in result.stderr
    assert result.exit_code == CASES[case][0], result.stderr


def test_every_verb_is_asked() -> None:
    elsewhere = {
        "demo",  # makes its own store
        "compare",  # makes its own stores
    }
    assert {case.split(",")[0] for case in CASES} | elsewhere == set(cli.main.commands)


def test_what_cannot_be_told_is_not_taken_for_no(places: Places) -> None:
    inside = places.closed / "commitlog"
    assert (is_present(inside), is_directory(inside), is_ordinary_file(inside)) == (
        True,
        True,
        False,
    )
    assert not is_present(places.closed / "nothing" / "at all")
    places.closed.chmod(0o700)
    try:
        with without_powers():
            for ask in (is_present, is_directory, is_ordinary_file):
                with pytest.raises(SourceError, match=r"commitlog: cannot be read: Permission"):
                    ask(inside)
    finally:
        places.closed.chmod(0o755)


def test_a_file_that_may_not_be_written_is_named_as_it_was_given(places: Places) -> None:
    out = places.closed.parent / "out.parquet"
    with without_powers():
        result = CliRunner().invoke(cli.main, ["export", str(places.store), str(out)])
    assert result.exit_code == TARGET
    assert result.stderr.splitlines()[-1] == f"{out}: cannot be written: Permission denied"
