# SPDX-License-Identifier: Apache-2.0
"""``convert`` of many stores: how they are named, what is printed, which exit code it ends with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from delaywheel.terminal.verbs import fleet as fleet_verbs
from message_store.format.delay_levels import DelayLevels
from migrate.settings import ConvertOptions
from tests.independent.level_store_builder import T0, LevelMessage, build_level_store

NAMES = ("north", "south", "west")
CONF = "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\nmappedFileSizeTimerLog=436\n"


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three stores, and the directory around them as the one that the command is given in."""
    monkeypatch.chdir(tmp_path)
    Path("target.conf").write_text(CONF)
    for name in NAMES:
        items = [LevelMessage(level=n % 3 + 3, body=name.encode()) for n in range(4)]
        build_level_store(Path(name, "store"), items)
    return [Path(name, "store") for name in NAMES]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def convert(*words: object) -> Result:
    return run("convert", *words, "--now", T0 + 500, "--target-conf", "target.conf")


def no_traceback(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit | None)
    for word in words:
        assert word in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
class TestManyStores:
    def test_why_a_store_failed_is_said_line_by_line(self, stores: list[Path]) -> None:
        result = convert(*stores, "wheels", "--level-table", "1s 5s 11s")
        assert result.exit_code == cli.USAGE, result.output
        assert "\nnorth, south, west: the level table given does not fit the store" in result.stderr
        assert "\n    the level table given: 1s 5s 11s\n" in result.stderr

    def test_a_table_says_what_became_of_each(self, stores: list[Path]) -> None:
        result = convert(*stores, "wheels", "--report", "pages")
        assert result.exit_code == cli.DONE, result.output
        rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
        assert rows["south"].split()[1:4] == ["converted", "4", "4"]
        assert rows["all"].split()[1:8] == ["3", "of", "3", "12", "12", "0"]
        assert "delaywheel verify SOURCE TARGET" in result.stdout
        assert "small stores" in result.stderr
        assert sorted(path.name for path in Path("pages").iterdir()) == [
            f"{name}.html" for name in NAMES
        ]
        assert run("verify", stores[1], "wheels/south").exit_code == cli.DONE

    def test_merged_into_one_target(self, stores: list[Path]) -> None:
        result = convert(*stores, "wheel", "--merge", "--report", "page.html")
        assert result.exit_code == cli.DONE, result.output
        rows = {
            line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()
        }
        assert rows[str(stores[1])][1:4] == ["4", "4", "0"]
        assert rows["12"][:6] == ["12", "of", "12", "pending", "messages", "converted,"]
        names = " ".join(map(str, stores))
        assert f"check it:  delaywheel verify {names} wheel" in result.stdout
        assert "<h2>Sources</h2>" in Path("page.html").read_text()
        each = run("verify", stores[1], "wheel")
        assert (each.exit_code, each.stdout.split(",")[0]) == (cli.DONE, "4 converted")
        told = json.loads(run("verify", *stores, "wheel", "--json").stdout)
        assert [(one["source"], one["converted"]) for one in told] == [
            (str(store), 4) for store in stores
        ]
        again = convert(*stores, "wheel", "--merge")
        assert again.exit_code == cli.DONE, again.output
        assert "this conversion was finished before" in again.stdout
        no_traceback(convert(*stores[:2], "wheel", "--merge"), cli.TARGET_UNWRITABLE, "finished")
        some = run("verify", stores[0], "wheel", "--sample", 2, "--differences", "none.jsonl")
        assert (some.exit_code, Path("none.jsonl").read_text()) == (cli.DONE, "")
        assert "2 converted" in some.stdout
        assert "2 only counted" in some.stdout
        for place in (stores[0] / "abort", Path("wheel/abort")):
            inside = run("verify", stores[0], "wheel", "--differences", place)
            no_traceback(inside, cli.TARGET_UNWRITABLE, "choose a place outside")
            assert not place.exists()
        alone = run("verify", "wheel")
        assert (alone.exit_code, alone.stdout.split(",")[0]) == (cli.DONE, "12 converted")
        assert "give SOURCE to compare them" in alone.stdout
        no_traceback(run("verify", "wheel", "--sample", 2), cli.USAGE, "there is no SOURCE")
        no_traceback(run("verify", stores[0]), cli.SOURCE_UNREADABLE, "run `delaywheel check")

    @pytest.mark.check
    def test_a_manifest_of_one_target_is_merged(self, stores: list[Path]) -> None:
        lines = [f"{store} wheel --only-level {n}\n" for n, store in enumerate(stores, 3)]
        Path("stores.txt").write_text("".join(lines))
        result = convert("--manifest", "stores.txt", "--merge", "--json")
        assert result.exit_code == cli.DONE, result.output
        told = json.loads(result.stdout)
        assert [one["request"]["only_levels"] for one in told["sources"]] == [[3], [4], [5]]
        assert told["converted"] == sum(one["converted"] for one in told["sources"]) == 4

    def test_json_lists_what_convert_says_of_each_and_the_errors(self, stores: list[Path]) -> None:
        (stores[1] / "abort").touch()
        result = convert(*stores, "wheels", "--json")
        no_traceback(result, cli.SOURCE_UNREADABLE, "/south/store/abort: the broker")
        told = json.loads(result.stdout)
        assert [each["state"] for each in told] == ["converted", "failed", "converted"]
        assert [each["source"] for each in told] == [str(store) for store in stores]
        assert (told[0]["converted"], told[0]["error"]) == (4, None)
        assert "--after-crash" in told[1]["error"]
        alone = json.loads(convert(stores[0], "alone", "--json").stdout)
        assert set(told[0]) - set(alone) == {"state", "error"}

    def test_the_same_command_again_does_what_is_left(self, stores: list[Path]) -> None:
        (stores[1] / "abort").touch()
        assert convert(*stores, "wheels").exit_code == cli.SOURCE_UNREADABLE
        (stores[1] / "abort").unlink()
        again = convert(*stores, "wheels")
        assert again.exit_code == cli.DONE
        assert again.stdout.count("finished before") == 2
        third = convert(*stores, "wheels")
        assert third.exit_code == cli.DONE
        assert third.stdout.count("finished before") == 3
        assert "starting Spark" not in third.stderr

    def test_the_worst_exit_code_of_all_is_that_of_the_command(self, stores: list[Path]) -> None:
        [log] = (stores[0] / "commitlog").iterdir()
        data = bytearray(log.read_bytes())
        data[100] ^= 0xFF
        log.write_bytes(data)
        shutil.rmtree(stores[2])
        result = convert(*stores, "wheels")
        no_traceback(result, cli.STOPPED_BY_POLICY, "north: 1 pending record cannot be converted")
        assert "  level " in result.stderr
        assert "/west/store: no such directory" in result.stderr
        assert "the same command skips finished stores" in result.stdout

    def test_master_and_slave_are_refused(self, stores: list[Path]) -> None:
        slave = Path(shutil.copytree(stores[0], "slave/store"))
        result = convert(*stores, slave, "wheels")
        no_traceback(result, cli.USAGE, "north/store and slave/store hold the data of one broker")
        assert [Path("wheels", name).exists() for name in ("north", "slave")] == [False, False]
        assert result.stdout.count("converted ") >= 2

    def test_a_manifest_names_stores_and_what_is_special_about_each(
        self, stores: list[Path]
    ) -> None:
        (stores[1] / "abort").touch()
        Path("stores.txt").write_text(
            "# those of the east come next week\n\n"
            "north/store 'wheels/the north' --only-level 3 --only-level 4\n"
            "south/store wheels/south --after-crash  # it lost power\n"
        )
        result = convert("--manifest", "stores.txt", "--json")
        assert result.exit_code == cli.DONE, result.output
        north, south = json.loads(result.stdout)
        assert (north["target"], north["converted"], north["skipped"]) == ("wheels/the north", 3, 1)
        assert (south["request"]["after_crash"], south["converted"]) == (True, 4)
        assert south["request"]["settings"]["commit_log_file_bytes"] == 4096

    def test_a_manifest_takes_back_a_flag_that_is_for_all(self, stores: list[Path]) -> None:
        for store in stores[:2]:
            (store / "abort").touch()
        members = [
            {"source": str(stores[0]), "target": "wheels/north", "after_crash": False},
            {"source": str(stores[1]), "target": "wheels/south"},
        ]
        Path("stores.json").write_text(json.dumps(members))
        result = convert("--manifest", "stores.json", "--after-crash", "--json")
        assert result.exit_code == cli.SOURCE_UNREADABLE, result.output
        north, south = json.loads(result.stdout)
        assert "--after-crash" in north["error"]
        assert south["converted"] == 4


# --- what a manifest may say ----------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ConvertOptions]]:
    """What a manifest and a command ask for, without doing it."""

    class Asked(Exception):
        pass

    def read(text: str, *words: object) -> list[ConvertOptions]:
        found: list[ConvertOptions] = []

        def note(members: list[ConvertOptions], _reports: object) -> None:
            found.extend(members)
            raise Asked

        Path("manifest").write_text(text)
        with monkeypatch.context() as patch:
            patch.setattr("migrate.fleet.Fleet", note)
            result = convert("--manifest", "manifest", *words)
        assert isinstance(result.exception, Asked), result.output
        return found

    return read


JSON = [
    {"source": "a", "target": "b", "after_crash": True, "levels-only": False},
    {"source": "c", "target": "-d", "only_level": [3, 5], "offsets": "bak", "now": T0},
]


def test_lines_and_json_say_the_same(
    stores: list[Path], asked: Callable[..., list[ConvertOptions]]
) -> None:
    assert stores
    lines = f"a b --after-crash\n--only-level 3 --only-level=5 --offsets bak --now {T0} -- c -d\n"
    from_lines, from_json = asked(lines), asked(json.dumps(JSON))
    assert from_lines == from_json
    first, second = from_json
    assert (first.source, first.target, first.after_crash) == (Path("a"), Path("b"), True)
    assert (second.only_levels, second.offsets, second.target) == ((3, 5), "bak", Path("-d"))
    assert (first.now_ms, second.now_ms) == (T0 + 500, T0)
    assert {one.settings.commit_log_file_bytes for one in from_json} == {4096}


def test_what_a_line_says_goes_before_what_is_said_for_all(
    stores: list[Path], asked: Callable[..., list[ConvertOptions]]
) -> None:
    assert stores
    Path("own.conf").write_text("messageDelayLevel=1s 7s\n")
    text = "a b\nc d --broker-conf own.conf --on-bad-record fail\ne f --level-table 3s\n"
    words = ("--level-table", "1s 2s", "--on-bad-record", "quarantine", "--only-topic", "T")
    found = asked(text, *words)
    tables = [one.level_table for one in found]
    assert tables == [DelayLevels.parse(each) for each in ("1s 2s", "1s 7s", "3s")]
    assert [one.on_bad_record for one in found] == ["quarantine", "fail", "quarantine"]
    assert [one.only_topics for one in found] == [("T",)] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "manifest: names no store"),
        ("# nothing\n", "manifest: names no store"),
        ("a b\nc\n", "line 2: Missing argument 'TARGET'"),
        ("a b c\n", "line 1: Got unexpected extra argument (c)"),
        ("a b --only-level x\n", "line 1: Invalid value for '--only-level'"),
        ("a b --master local\n", "line 1: No such option"),
        ("a b --broker-conf no.conf\n", "no.conf: no such file"),
        ("a 'b\n", "line 1: No closing quotation"),
        ("a a/b\n", "one lies in the other"),
        ("a b\nc b\n", "named twice"),
        ("{}", "not a list of objects"),
        ("[{", "not JSON"),
        ("[3]", "entry 1: not an object with source and target"),
        ('[{"source": "a"}]', "entry 1: not an object with source and target"),
        ('[{"source": "a", "target": ""}]', "entry 1: Invalid value for 'TARGET': an empty path"),
        ('[{"source": "a", "target": "a\\u0000b"}]', "entry 1: Invalid value for 'TARGET'"),
        ('[{"source": "\\ud800", "target": "b"}]', "entry 1: Invalid value for 'SOURCE'"),
        ('[{"source": "a", "target": "b", "owner": "\\ud800"}]', "is no user of this machine"),
        ('[{"source": "a", "target": "b", "x": 1}]', "entry 1: No such option"),
        ('[{"source": "a", "target": "b", "after_crash": 1}]', "does not take a value"),
        ('[{"source": "a", "target": "b", "only_level": false}]', "false says nothing of --only"),
    ],
)
def test_a_manifest_that_is_not_understood_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("manifest").write_text(text)
    result = run("convert", "--manifest", "manifest")
    no_traceback(result, cli.USAGE, said)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--manifest", "nothing"], "nothing: no such file"),
        (["--manifest", "."], "--manifest"),
        (["a", "b", "--manifest", "m"], "there is nothing beside it"),
        (["a/store", "./a/store", "t"], "a/store is given twice"),
        (["a/store", "b/a", "t"], "the target of b/a is called 'a', and so is that of a/store"),
        (["a", "b", "t", "--in-place"], "--in-place converts one store"),
        (["--manifest", "m", "--in-place"], "--in-place converts one store"),
        (["a", "b", "t", "--execute"], "--execute goes with --in-place"),
        ([], "Missing argument 'SOURCE'"),
        (["a"], "Missing argument 'TARGET'"),
        (["--in-place"], "Missing argument 'SOURCE'"),
    ],
)
def test_words_that_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    no_traceback(run("convert", *words), cli.USAGE, said)
    assert list(tmp_path.iterdir()) == []


def test_two_places_are_one_conversion() -> None:
    assert not fleet_verbs.is_fleet([Path("a"), Path("b")], None)
    assert fleet_verbs.is_fleet([Path("a"), Path("b"), Path("c")], None)


def test_a_merge_of_one_source_is_refused(stores: list[Path]) -> None:
    no_traceback(convert(stores[0], "wheel", "--merge"), cli.USAGE, "two or more SOURCEs")
    assert not Path("wheel").exists()


def test_a_place_is_named_once_where_source_and_target_are_called_the_same(
    stores: list[Path],
) -> None:
    result = convert("missing", "absent", "wheels")
    no_traceback(result, cli.SOURCE_UNREADABLE, "\nmissing: no such directory;")
    assert "missing: missing" not in result.stderr
