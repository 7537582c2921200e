# SPDX-License-Identifier: Apache-2.0
"""The flags that say where a source's log and queues lie, verb by verb; the members of a group."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import cli
from delaywheel.terminal.options.types import PATHS
from tests.helpers.log_places import broker_conf, scatter
from tests.independent.dledger_member import make_member
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store

ITEMS = [LevelMessage(level=3 + n % 2, store_timestamp_ms=T0 + n) for n in range(24)]
SMALL = "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\n"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def told(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-a", tmp_path / "disk-b"]


@pytest.fixture
def store(tmp_path: Path, places: list[Path]) -> Path:
    build_level_store(tmp_path / "store", ITEMS, commit_log_file_bytes=4096)
    scatter(tmp_path / "store" / "commitlog", *places)
    return tmp_path / "store"


@pytest.fixture(params=["conf", "flag"])
def named(
    request: pytest.FixtureRequest, tmp_path: Path, store: Path, places: list[Path]
) -> list[object]:
    """How the places are named: by a configuration, or by the flag."""
    if request.param == "flag":
        return ["--commit-log", ",".join(map(str, places))]
    return ["--broker-conf", broker_conf(tmp_path / "c", store, "storePathCommitLog", places)]


def test_every_verb_that_reads_a_source_takes_its_places(
    tmp_path: Path, store: Path, named: list[object]
) -> None:
    target, now = tmp_path / "target", ["--now", T0 + 500]
    conf = tmp_path / "small"
    conf.write_text(SMALL)
    assert json.loads(told("inspect", store, *named, *now, "--json").stdout)["pending"] == 24
    assert len(told("pending", store, *named, *now, "--json").stdout.splitlines()) == 24
    assert run("check", store, *named, *now).exit_code in (0, 1)
    assert run("inspect", store, *now).exit_code == cli_code("SOURCE_UNREADABLE")
    told("convert", store, target, *named, *now, "--target-conf", conf, "--in-process")
    told("verify", store, target, *named, "--in-process")
    told("export", store, tmp_path / "out.parquet", *named, *now)
    told("groups", store, *named)
    for verb in ("trace", "state"):
        assert run(verb, store, "no such key", *named).exit_code == cli_code("FINDINGS")
        assert run(verb, store, "no such key").exit_code == cli_code("SOURCE_UNREADABLE")
    assert run("read", store, "TopicA", *named).exit_code == cli_code("DONE")
    told("plain", store, tmp_path / "plain", *named)
    told("retire", store, "--converted-to", target, *named, "--execute")
    assert json.loads(told("inspect", store, *named, "--json").stdout)["pending"] == 0
    told("rollback", store, *named, "--execute")
    assert json.loads(told("inspect", store, *named, "--json").stdout)["pending"] == 24


_MADE = {"--report", "--directory", "--keep", "--differences", "--scratch"}
"""Flags that name what a verb makes; all others name what is read."""
_WORDS = {
    "cancel": ["--key", "k"],
    "compare": ["--workload", "backlog", "--store", "{store}", "--now", str(T0)],
    "consume": ["TopicA", "--group", "g"],
    "convert": ["{target}", "--in-process"],
    "dead-letters": ["group_a", "--redrive"],
    "export": ["{target}"],
    "plain": ["{target}"],
    "put-back": ["{store}"],
    "read": ["TopicA"],
    "reschedule": ["--key", "k", "--after", "1s"],
    "retire": ["--converted-to", "{store}"],
    "run": ["--now", str(T0)],
    "schedule": ["--topic", "a", "--after", "1s", "--body", "b"],
    "state": ["k"],
    "trace": ["k"],
    "verify": ["{target}", "--in-process"],
}
"""What each verb needs besides its store."""
_OWN = {
    "--manifest": ["convert", "--manifest"],
    "--trace": ["compare", "--workload", "trace", "--trace"],
    "--lines": ["schedule", "{store}", "--lines"],
    "--body-file": ["schedule", "{store}", "--topic", "a", "--after", "1s", "--body-file"],
}
"""Flags that do not go with the words of their verb."""
_PATH_FLAGS = [
    (verb, option.opts[0])
    for verb, command in sorted(cli.main.commands.items())
    for option in command.params
    if isinstance(option, click.Option)
    and (isinstance(option.type, click.Path | click.File) or option.type is PATHS)
    and option.opts[0] not in _MADE
]


def _tree(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


@pytest.mark.parametrize(("verb", "flag"), _PATH_FLAGS)
@pytest.mark.parametrize("what", ["missing", "empty", "other"])
def test_a_path_flag_that_names_nothing_is_refused_with_its_path(
    verb: str, flag: str, what: str, tmp_path: Path
) -> None:
    store, given = tmp_path / "store", tmp_path / what
    build_level_store(store, ITEMS)
    if what == "empty":
        given.mkdir()
    elif what == "other":
        given.write_bytes(b"\0\xff no such thing\n")
    if (what, flag) == ("other", "--body-file"):
        return  # any bytes are a body
    before = _tree(tmp_path)
    words = [verb, *([] if verb == "compare" else ["{store}"]), *_WORDS.get(verb, []), flag]
    words = _OWN.get(flag, words[: words.index(flag) + 1])
    result = run(*(word.format(store=store, target=tmp_path / "t") for word in words), given)
    assert result.exit_code in (cli_code("USAGE"), cli_code("SOURCE_UNREADABLE")), result.output
    assert str(given) in result.stderr or flag in result.stderr
    assert _tree(tmp_path) == before


def test_without_them_the_refusal_names_the_flags(store: Path) -> None:
    result = run("inspect", store)
    assert result.exit_code == cli_code("SOURCE_UNREADABLE")
    assert "--broker-conf or --commit-log" in result.stderr


def cli_code(name: str) -> int:
    from delaywheel.terminal import verb

    code: int = getattr(verb, name)
    return code


def test_the_place_of_one_source_is_not_given_for_several(store: Path, tmp_path: Path) -> None:
    flags = ["--commit-log", tmp_path / "disk-a"]
    for words in (
        ["convert", store, store, tmp_path / "out", *flags],
        ["convert", store, store, tmp_path / "out", *flags, "--merge"],
        ["verify", store, store, tmp_path / "out", *flags],
    ):
        result = run(*words)
        assert result.exit_code == cli_code("USAGE")
        assert "are for one SOURCE" in result.stderr


def test_a_list_of_directories_that_names_none_is_a_usage_error(store: Path) -> None:
    result = run("inspect", store, "--commit-log", " , ")
    assert result.exit_code == cli_code("USAGE")
    assert "names no directory" in result.stderr


def test_a_configuration_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "other"
    conf.write_text("storePathRootDir=/data/store\nstorePathCommitLog=/disk-a/log,/disk-b/log\n")
    result = run("pending", store, "--broker-conf", conf)
    assert result.exit_code == cli_code("USAGE")
    assert "the configuration is that of the store /data/store" in result.stderr


def test_a_manifest_names_the_places_of_each_store(
    store: Path, tmp_path: Path, places: list[Path]
) -> None:
    build_level_store(tmp_path / "other", [LevelMessage(level=3, body=b"of another broker")])
    paths = ",".join(map(str, places))
    manifest = tmp_path / "list"
    first = f"{store} {tmp_path / 'one'} --commit-log {paths}"
    manifest.write_text(f"{first}\n{tmp_path / 'other'} {tmp_path / 'two'}\n")
    now = ["--now", T0 + 500, "--in-process", "--json"]
    done = json.loads(told("convert", "--manifest", manifest, *now).stdout)
    assert [entry["state"] for entry in done] == ["converted", "converted"]


# --- the members of a group -----------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> list[Path]:
    roots = []
    for name, count in (("n0", 20), ("n1", 24), ("n2", 24)):
        root = tmp_path / name
        build_level_store(root, ITEMS[:count], commit_log_file_bytes=4096)
        roots.append(make_member(root, name=name).root)
    return roots


def test_the_members_of_a_group_are_converted_once_and_retired_together(
    tmp_path: Path, group: list[Path]
) -> None:
    target, conf = tmp_path / "target", tmp_path / "conf"
    conf.write_text(f"{SMALL}dLegerPeers=n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3\n")
    words = ["--target-conf", conf, "--now", T0 + 500, "--in-process"]
    result = told("convert", *group, target, "--members", *words)
    assert f"{group[1]} is converted, which the group would elect" in result.stderr
    assert f"{group[0]} ends at entry 19 of term 1 and lacks the last 4 entries" in result.stderr
    told("verify", group[1], target, "--in-process")
    refused = run("retire", *group, "--converted-to", target)
    assert refused.exit_code == cli_code("USAGE")
    assert "--broker-conf names a configuration with its dLegerPeers" in refused.stderr
    told("retire", *group, "--converted-to", target, "--broker-conf", conf, "--execute")
    for root in group:
        assert json.loads(told("inspect", root, "--json").stdout)["pending"] == 0


def test_members_go_with_nothing_that_names_other_stores(tmp_path: Path, group: list[Path]) -> None:
    for words in (["--merge"], ["--in-place"]):
        result = run("convert", *group, tmp_path / "target", "--members", *words)
        assert result.exit_code == cli_code("USAGE")
        assert "--members takes no" in result.stderr
