# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, and which exit code and sentence each refusal gets."""

import builtins
import importlib
import json
import os
import pkgutil
import pty
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import cli
import migrate
from legacy_levels.generate.store import generate_level_store
from message_store.base import errors
from message_store.files.store_root import StoreRoot
from tests.independent.level_messages import DeliveredCopy, LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import WHEEL_55_CLEAN, unpack
from tests.source_laws import ROOT

NOW = "2023-11-14T22:13:40Z"
NOW_MS = T0 + 20_000
INSTALLED = Path(sys.executable).parent / "delaywheel"

FIRST = LevelMessage(level=3, topic="Orders")
ITEMS = [
    FIRST,
    LevelMessage(level=5, topic="Orders", store_timestamp_ms=T0 + 1_000, keys="k1"),
    LevelMessage(level=18, topic="Payments", store_timestamp_ms=T0 + 2_000),
    DeliveredCopy(of=FIRST),
    LevelMessage(level=3, topic="Orders", store_timestamp_ms=T0 + 11_000),
]
TORN = LevelMessage(level=4, damage=lambda data: data[:90] + bytes(len(data) - 90))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three messages wait; one in level 3 was delivered."""
    build_level_store(tmp_path / "source", ITEMS, offsets={3: 1})
    return tmp_path / "source"


@pytest.fixture
def target_conf(tmp_path: Path) -> Path:
    """A new broker with small files."""
    path = tmp_path / "target.conf"
    path.write_text(
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "mappedFileSizeTimerLog=10240\n"
    )
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def convert(source: Path, target: Path, conf: Path, *more: object) -> Result:
    words = ("convert", source, target, "--target-conf", conf, "--now", NOW, *more)
    return run(*words)


def refused(result: Result, code: int, *words: str) -> None:
    """One clear sentence on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


# --- what each verb prints ------------------------------------------------------------------------


def test_inspect_for_people(source: Path) -> None:
    result = run("inspect", source, "--now", NOW)
    assert result.exit_code == cli.DONE
    assert "rocketmq-4, stopped cleanly" in result.stdout
    assert "3 pending, 0 overdue, the first due 2023-11-14T22:13:41Z (in 1s)" in result.stdout
    assert "level 5 (1m)" in result.stdout
    assert "in 41s" in result.stdout


def test_inspect_for_programs(source: Path) -> None:
    found = json.loads(run("inspect", source, "--now", NOW_MS, "--json").stdout)
    assert found["format"] == "rocketmq-4"
    assert (found["clean"], found["pending"], found["overdue"]) == (True, 3, 0)
    assert found["wheel"] is None
    three = {
        "level": 3,
        "delay_ms": 10_000,
        "offset": 1,
        "queue_min": 0,
        "queue_max": 2,
        "pending": 1,
        "overdue": 0,
        "next_due_ms": T0 + 21_000,
    }
    assert found["levels"][0].items() >= three.items()


def test_pending_is_one_json_object_a_line(source: Path) -> None:
    result = run("pending", source, "--now", NOW)
    assert result.exit_code == cli.DONE
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["level"] for line in lines] == [3, 5, 18]
    assert set(lines[0]) == {
        "unique_key", "topic", "queue_id", "tags", "keys", "level", "due_ms", "size_bytes",
        "commit_log_offset",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (["--topic", "Payments"], [18]),
        (["--level", "5"], [5]),
        (["--key", "k1", "--json"], [5]),
        (["--due-before", "2023-11-14T22:13:42Z"], [3]),
        (["--due-after", str(T0 + 60_000), "--limit", "1"], [5]),
    ],
)
def test_pending_filters(source: Path, flags: list[str], levels: list[int]) -> None:
    result = run("pending", source, "--now", NOW, *flags)
    assert [json.loads(line)["level"] for line in result.stdout.splitlines()] == levels


def test_pending_names_what_cannot_be_read_and_ends_with_1(tmp_path: Path) -> None:
    build_level_store(tmp_path / "source", [TORN, *ITEMS])
    result = run("pending", tmp_path / "source", "--now", NOW)
    assert result.exit_code == cli.FINDINGS
    assert len(result.stdout.splitlines()) == 3
    assert "cannot be read: level 4, queue offset 0, log offset 0" in result.stderr


def test_a_store_of_more_files_than_a_shell_lets_open(tmp_path: Path) -> None:
    made = run("generate", tmp_path / "store", "--messages", 300, "--commit-log-file-bytes", 1024)
    assert made.exit_code == cli.DONE
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 64
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    listed = subprocess.run(
        [sys.executable, "-P", "-c", "import cli; cli.main()", "pending", tmp_path / "store"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, most)),
    )
    assert len(listed.stdout.splitlines()) == 300


def test_generate_makes_a_store_that_inspect_counts(tmp_path: Path) -> None:
    flags = ["--messages", 50, "--levels", "2,4-5", "--now", NOW, "--commit-log-file-bytes", 65536]
    made = run("generate", tmp_path / "store", *flags, "--json")
    assert made.exit_code == cli.DONE
    assert json.loads(made.stdout)["messages"] == 50
    found = json.loads(run("inspect", tmp_path / "store", "--now", NOW, "--json").stdout)
    assert found["pending"] == 50
    assert [level["level"] for level in found["levels"] if level["pending"]] == [2, 4, 5]
    refused(run("generate", tmp_path / "store", *flags), cli.TARGET_UNWRITABLE, "not empty")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
class TestConversion:
    """Verbs that need Spark."""

    def test_a_conversion_and_its_verification(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        target, page = tmp_path / "target", tmp_path / "report.html"
        result = convert(source, target, target_conf, "--report", page)
        assert result.exit_code == cli.DONE, result.output
        assert "3 of 3 pending messages converted" in result.stdout
        assert "level 18 (2h)" in result.stdout
        assert f"delaywheel verify {source} {target}" in result.stdout
        assert "timerPrecisionMs=1000" in result.stdout
        assert "open before 2023-" in result.stdout
        assert "restarting the old broker would deliver the converted messages again" in (
            result.stdout
        )
        assert "this target can only be inspected" in result.stderr
        assert "write" in result.stderr
        assert page.read_text().startswith("<!DOCTYPE html>")
        verified = run("verify", source, target)
        assert verified.exit_code == cli.DONE, verified.output
        assert "3 converted, 0 missing, 0 unexpected, 0 different" in verified.stdout
        inspected = json.loads(run("inspect", target, "--now", NOW, "--json").stdout)
        assert inspected["wheel"]["pending"] == 3
        assert inspected["format"] == "rocketmq-5"

    def test_the_keys_of_convert_and_verify(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        report = json.loads(convert(source, tmp_path / "t", target_conf, "--json").stdout)
        assert set(report) >= {
            "queued", "already_delivered", "neutral", "expired", "pending", "converted", "skipped",
            "quarantined", "overdue", "rolled", "levels", "due_min_ms", "due_max_ms",
            "open_before_ms", "bytes_read", "bytes_written", "seconds", "bad_records",
        }  # fmt: skip
        assert set(report["seconds"]) == {"spark_start", "plan", "write", "seal", "total"}
        assert set(report["levels"][0]) >= {
            "level", "delay_ms", "from_offset", "to_offset", "queued", "converted",
        }  # fmt: skip
        verified = json.loads(run("verify", source, tmp_path / "t", "--json", "--quiet").stdout)
        counts = ("converted", "missing", "unexpected", "different", "differences")
        assert [verified[name] for name in counts] == [3, 0, 0, 0, []]

    def test_a_report_that_cannot_be_written_is_said_before_anything_is_done(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        for page in (target_conf / "report.html", tmp_path):
            result = convert(source, tmp_path / "target", target_conf, "--report", page)
            refused(result, cli.TARGET_UNWRITABLE, str(page), "cannot be written")
            assert not (tmp_path / "target").exists()

    def test_a_report_that_fails_in_the_end_does_not_take_the_result_with_it(
        self, source: Path, target_conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_report: object, path: Path) -> None:
            raise errors.TargetError(f"{path}: cannot be written: No space left on device")

        monkeypatch.setattr("migrate.report.html.write_html_report", full)
        page = tmp_path / "pages" / "report.html"
        result = convert(source, tmp_path / "target", target_conf, "--report", page, "--json")
        assert result.exit_code == cli.TARGET_UNWRITABLE
        assert "No space left on device" in result.stderr
        assert json.loads(result.stdout)["converted"] == 3

    def test_verification_puts_what_it_needs_where_it_is_told(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        assert convert(source, tmp_path / "target", target_conf).exit_code == cli.DONE
        words = ("verify", source, tmp_path / "target", "--scratch")
        assert run(*words, tmp_path).exit_code == cli.DONE

    def test_quiet_means_no_progress(self, source: Path, target_conf: Path, tmp_path: Path) -> None:
        result = convert(source, tmp_path / "target", target_conf, "--quiet")
        assert "write" not in result.stderr

    def test_a_target_of_another_source_does_not_verify(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        convert(source, tmp_path / "target", target_conf)
        build_level_store(tmp_path / "other", [*ITEMS, LevelMessage(level=6)], offsets={3: 1})
        result = run("verify", tmp_path / "other", tmp_path / "target")
        assert result.exit_code == cli.FINDINGS
        assert "1 missing" in result.stdout
        assert "missing: TopicA" in result.stdout
        assert "do not start a broker on this target" in result.stdout

    def test_bad_records_stop_the_run_and_are_all_listed(
        self, target_conf: Path, tmp_path: Path
    ) -> None:
        beyond = LevelMessage(level=6, unit_fields={"commit_log_offset": 1 << 40})
        build_level_store(tmp_path / "source", [TORN, beyond, *ITEMS])
        result = convert(tmp_path / "source", tmp_path / "target", target_conf)
        refused(result, cli.STOPPED_BY_POLICY, "2 pending records cannot be converted")
        assert "level 4, queue offset 0, log offset 0: " in result.stderr
        assert f"level 6, queue offset 0, log offset {1 << 40}: " in result.stderr
        again = convert(tmp_path / "source", tmp_path / "target", target_conf, "--json")
        assert again.exit_code == cli.STOPPED_BY_POLICY
        listed = json.loads(again.stdout)["bad_records"]
        assert [record["level"] for record in listed] == [4, 6]
        assert set(listed[0]) == {"level", "queue_offset", "commit_log_offset", "reason"}

    def test_quarantine_converts_the_others_and_lists_the_rest(
        self, target_conf: Path, tmp_path: Path
    ) -> None:
        build_level_store(tmp_path / "source", [TORN, *ITEMS])
        words = ("--on-bad-record", "quarantine")
        result = convert(tmp_path / "source", tmp_path / "target", target_conf, *words)
        assert result.exit_code == cli.DONE, result.output
        assert "3 of 4 pending messages converted" in result.stdout
        assert "quarantined:\n  level 4, queue offset 0" in result.stdout
        assert run("verify", tmp_path / "source", tmp_path / "target").exit_code == cli.DONE

    def test_only_some_levels_and_topics(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        words = ("--only-level", 5, "--only-level", 18, "--only-topic", "Orders")
        result = convert(source, tmp_path / "target", target_conf, *words)
        assert "1 of 3 pending messages converted" in result.stdout
        assert "2 pending messages were left out on purpose" in result.stdout

    @pytest.mark.parametrize("reason", ["not empty", "in the source", "a file"])
    def test_a_target_that_cannot_be_one(
        self, reason: str, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "notes.txt").write_text("mine")
        targets = {
            "not empty": (tmp_path / "target", "is not empty: notes.txt"),
            "in the source": (source / "wheel", "must not lie in the source"),
            "a file": (target_conf / "wheel", "cannot be written: Not a directory"),
        }
        target, words = targets[reason]
        refused(convert(source, target, target_conf), cli.TARGET_UNWRITABLE, str(target), words)

    def test_a_finished_target_is_not_converted_again(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        assert convert(source, tmp_path / "target", target_conf).exit_code == cli.DONE
        again = convert(source, tmp_path / "target", target_conf, "--only-level", 3)
        refused(again, cli.TARGET_UNWRITABLE, "already holds a finished conversion")

    def test_a_full_disk(
        self, source: Path, target_conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.statvfs(tmp_path)
        facts = os.statvfs_result([real.f_bsize, 1_000, 100, 1, 1, *real[5:]])
        with monkeypatch.context() as filling:
            filling.setattr(os, "statvfs", lambda _path: facts)
            result = convert(source, tmp_path / "target", target_conf)
        refused(result, cli.TARGET_UNWRITABLE, "bytes are needed, 1,000 are free")

    def test_an_unfinished_target_of_something_else_is_not_continued(
        self, source: Path, target_conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_given: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as stopping:
            stopping.setattr("migrate.convert.write_logs", stop)
            stopped = convert(source, tmp_path / "target", target_conf)
        assert stopped.exit_code == cli.INTERRUPTED
        other = convert(source, tmp_path / "target", target_conf, "--only-level", 5)
        refused(other, cli.TARGET_UNWRITABLE, "was begun from something else", "only_levels")
        assert convert(source, tmp_path / "target", target_conf).exit_code == cli.DONE

    def test_a_level_table_that_is_not_the_stores_is_shown_beside_it(
        self, source: Path, target_conf: Path, tmp_path: Path
    ) -> None:
        words = ("--level-table", "1s 5s 11s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
        result = convert(source, tmp_path / "target", target_conf, *words)
        refused(result, cli.USAGE, "1s 5s 11s 30s", "3: 10s")
        broker_conf = tmp_path / "broker.conf"
        broker_conf.write_text("messageDelayLevel=1s 5s 12s 30s 1m\n")
        result = convert(source, tmp_path / "target", target_conf, "--broker-conf", broker_conf)
        refused(result, cli.USAGE, "1s 5s 12s 30s 1m", "3: 10s")

    def test_a_now_that_has_not_come_yet(self, source: Path, tmp_path: Path) -> None:
        result = run("convert", source, tmp_path / "target", "--now", "2999-01-01")
        refused(result, cli.USAGE, "later than this machine's clock")

    def test_a_store_that_was_not_stopped_cleanly(self, target_conf: Path, tmp_path: Path) -> None:
        build_level_store(tmp_path / "source", ITEMS, offsets={}, abort=True)
        result = convert(tmp_path / "source", tmp_path / "target", target_conf)
        refused(result, cli.SOURCE_UNREADABLE, "abort", "--after-crash")
        accepted = convert(tmp_path / "source", tmp_path / "target", target_conf, "--after-crash")
        assert accepted.exit_code == cli.DONE, accepted.output
        assert "already delivered" in accepted.stdout

    def test_a_wheel_that_still_holds_messages(self, tmp_path: Path) -> None:
        store = unpack(WHEEL_55_CLEAN, tmp_path / "source")
        words = ("convert", store.root, tmp_path / "target", "--now", store.stopped_ms)
        refused(run(*words), cli.STOPPED_BY_POLICY, "wait in its timer wheel", "--levels-only")
        assert run(*words, "--levels-only").exit_code == cli.DONE

    def test_offsets_on_which_no_broker_starts(self, target_conf: Path, tmp_path: Path) -> None:
        build_level_store(
            tmp_path / "source", ITEMS, offsets=b"\0" * 50, backup_offsets=b'{"offsetTable"'
        )
        result = convert(tmp_path / "source", tmp_path / "target", target_conf)
        refused(result, cli.SOURCE_UNREADABLE, "NUL bytes", "choose main, bak or none")
        chosen = convert(tmp_path / "source", tmp_path / "target", target_conf, "--offsets", "none")
        assert chosen.exit_code == cli.DONE, chosen.output

    def test_a_backup_of_the_offsets_is_used_and_said_aloud(
        self, target_conf: Path, tmp_path: Path
    ) -> None:
        build_level_store(tmp_path / "source", ITEMS, offsets=b"", backup_offsets={3: 1})
        result = convert(tmp_path / "source", tmp_path / "target", target_conf)
        assert result.exit_code == cli.DONE
        assert "delayOffset.json" in result.stderr

    def test_a_target_that_no_conversion_made_cannot_be_verified(
        self, source: Path, tmp_path: Path
    ) -> None:
        build_level_store(tmp_path / "other", ITEMS)
        result = run("verify", source, tmp_path / "other")
        refused(result, cli.SOURCE_UNREADABLE, "not the target of a finished conversion")

    def test_control_characters_never_reach_the_terminal(
        self, target_conf: Path, tmp_path: Path
    ) -> None:
        evil = "\x1b[31mred\u202e"
        items = [
            LevelMessage(level=3, topic=evil),
            LevelMessage(level=3, keys=evil, tags=evil, unique_key=evil),
        ]
        build_level_store(tmp_path / "source", items)
        page = tmp_path / "report.html"
        words = ("--report", page, "--on-bad-record", "quarantine")
        results = [
            run("inspect", tmp_path / "source", "--now", NOW),
            run("pending", tmp_path / "source", "--now", NOW),
            run("pending", tmp_path / "source", "--now", NOW, "--json"),
            convert(tmp_path / "source", tmp_path / "target", target_conf, *words),
            run("verify", tmp_path / "source", tmp_path / "target"),
        ]
        for result in results:
            assert "\x1b" not in result.output
            assert "\u202e" not in result.output
        assert r"\x1b[31mred\u202e" in results[0].stdout
        assert "\x1b" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "flag"), [(("verify", "SOURCE", "TARGET"), "--scratch"), (("demo",), "--directory")]
)
def test_a_cluster_without_a_place_that_all_its_workers_see(
    words: tuple[str, ...], flag: str
) -> None:
    result = run(*words, "--master", "spark://node:7077")
    refused(result, cli.USAGE, "spark://node:7077", f"{flag} must name a directory")


def test_a_demo_where_there_already_is_one(tmp_path: Path) -> None:
    from migrate.demo import unpack_sample

    unpack_sample(tmp_path)
    with pytest.raises(errors.TargetError, match="is there already"):
        unpack_sample(tmp_path)


# --- refusals of a source -------------------------------------------------------------------------

READERS = [("inspect",), ("pending",), ("convert", "TARGET"), ("verify", "TARGET")]


def read_with(words: tuple[str, ...], source: Path, tmp_path: Path) -> Result:
    more = [tmp_path / "target" for _word in words[1:]]
    return run(words[0], source, *more)


@pytest.mark.parametrize("words", READERS)
def test_a_source_that_is_not_there(words: tuple[str, ...], tmp_path: Path) -> None:
    result = read_with(words, tmp_path / "nowhere", tmp_path)
    refused(result, cli.SOURCE_UNREADABLE, "no such directory; expected a broker's store")


@pytest.mark.parametrize("words", READERS)
def test_a_source_that_is_a_file(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(read_with(words, tmp_path / "file", tmp_path), cli.SOURCE_UNREADABLE, "not a directory")


@pytest.mark.parametrize("words", READERS)
def test_a_source_that_is_no_store(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = read_with(words, tmp_path / "empty", tmp_path)
    refused(result, cli.SOURCE_UNREADABLE, "not a store directory: there is no commitlog/")


@pytest.mark.parametrize("words", READERS)
@pytest.mark.parametrize(
    ("sign", "name"), [("consumequeue/CURRENT", "RocksDB"), ("dledger-n0/x", "DLedger")]
)
def test_a_source_of_a_kind_that_is_not_read(
    words: tuple[str, ...], sign: str, name: str, source: Path, tmp_path: Path
) -> None:
    (source / sign).parent.mkdir(exist_ok=True)
    (source / sign).write_text("")
    refused(read_with(words, source, tmp_path), cli.SOURCE_UNREADABLE, name)


@pytest.mark.parametrize("words", READERS)
def test_a_source_that_leads_elsewhere(
    words: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    shutil.move(source / "commitlog", tmp_path / "elsewhere")
    (source / "commitlog").symlink_to(tmp_path / "elsewhere")
    refused(read_with(words, source, tmp_path), cli.SOURCE_UNREADABLE, "leads outside the store")


# --- wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["inspect"], "Missing argument 'STORE'"),
        (["inspect", "S", "--now", "noon"], "neither ISO 8601 nor epoch milliseconds"),
        (["inspect", "S", "--offsets", "best"], "'best' is not one of"),
        (["convert", "S", "T", "--precision-ms", "250"], "'250' is not one of"),
        (["convert", "S", "T", "--level-table", "1s 5x"], "level 2 of the level table"),
        (["convert", "S", "T", "--broker-conf", "no.conf"], "no.conf: no such file"),
        (["convert", "S", "T", "--target-conf", "no.conf"], "no.conf: no such file"),
        (["convert", "S", "T", "--conf", "spark"], "is not KEY=VALUE"),
        (["convert", "S", "T", "--on-bad-record", "skip"], "'skip' is not one of"),
        (["generate", "S", "--messages", "1", "--levels", "0-3"], "levels 1 to 18"),
        (["generate", "S", "--messages", "1", "--levels", "a"], "is not like 1-18"),
        (["generate", "S", "--messages", "9" * 20], "is not in the range"),
        (["generate", "S", "--messages", "1", "--body-bytes", "9" * 11], "is not in the range"),
        (["generate", "S", "--messages", "1", "--body-bytes", "0"], "is not in the range"),
        (["generate", "S", "--messages", "1", "--topics", "9" * 7], "is not in the range"),
        (
            ["generate", "S", "--messages", "1", "--commit-log-file-bytes", str(2**31)],
            "is not in the range",
        ),
        (["conver"], "No such command 'conver'"),
    ],
)
def test_wrong_usage(words: list[str], sentence: str) -> None:
    refused(run(*words), cli.USAGE, sentence)


def test_a_precision_that_contradicts_the_target_s_broker(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("timerPrecisionMs=500\n")
    words = ("convert", "S", "T", "--target-conf", conf, "--precision-ms", 100)
    refused(run(*words), cli.USAGE, "--precision-ms 100 and timerPrecisionMs=500")


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14 23:13:20.250+01:00", 1_700_000_000_250),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_times_as_people_write_them(text: str, time_ms: int) -> None:
    from delaywheel.terminal.options.types import parse_time

    assert parse_time(text) == time_ms


# --- exit codes -----------------------------------------------------------------------------------


def every_error() -> list[type[errors.DelayStoreError]]:
    """Those of every module, whichever of them other tests have imported."""
    for info in pkgutil.walk_packages(migrate.__path__, "migrate."):
        importlib.import_module(info.name)
    found = [errors.DelayStoreError]
    for kind in found:
        found += kind.__subclasses__()
    return sorted(set(found), key=lambda kind: kind.__name__)


def test_every_error_of_the_table_exists() -> None:
    assert set(cli.EXIT_CODES) <= {kind.__name__ for kind in every_error()}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SourceError", 3),
        ("UnsupportedStoreError", 3),
        ("StoreLockedError", 3),
        ("UncleanStoreError", 3),
        ("FormatError", 3),
        ("ChecksumError", 3),
        ("TargetError", 4),
        ("PlanError", 4),
        ("OptionsError", 2),
        ("JavaMissingError", 4),
        ("MigrationError", 4),
        ("BadRecordsError", 5),
        ("WheelNotEmptyError", 5),
        ("UnsupportedDelayError", 2),
    ],
)
def test_exit_codes(name: str, code: int) -> None:
    [kind] = [kind for kind in every_error() if kind.__name__ == name]
    error = kind([]) if name == "BadRecordsError" else kind("no")
    assert cli.exit_code(error) == code


def with_inspect_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Result:
    def fail(*_given: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr("migrate.look.inspect.inspect_store", fail)
    return run("inspect", "STORE")


def test_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    result = with_inspect_raising(KeyboardInterrupt(), monkeypatch)
    refused(result, cli.INTERRUPTED, "interrupted")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    result = with_inspect_raising(RuntimeError("a bug"), monkeypatch)
    assert isinstance(result.exception, RuntimeError)


# --- as a program ---------------------------------------------------------------------------------


def as_program(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli", *map(str, words)]
    given = os.environ | environment
    return subprocess.run(
        command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=250, check=False
    )


def test_without_java(source: Path, tmp_path: Path) -> None:
    result = as_program("convert", source, tmp_path / "target", PATH=str(tmp_path), JAVA_HOME="")
    assert result.returncode == cli.TARGET_UNWRITABLE
    assert "install Java 17 or newer" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "target").exists()


def test_a_store_that_a_broker_holds(source: Path) -> None:
    with StoreRoot(source).lock.open("r+b") as lock:
        import fcntl

        fcntl.lockf(lock, fcntl.LOCK_EX, 1)
        result = as_program("inspect", source)
    assert result.returncode == cli.SOURCE_UNREADABLE
    assert (
        f"{StoreRoot(source).lock}: held by another process (pid {os.getpid()});" in result.stderr
    )
    assert "stop the broker first, or whatever program that is" in result.stderr


def on_terminal(*words: object) -> str:
    """What a terminal of 120 columns gets, stdout and stderr in one."""
    ours, theirs = pty.openpty()
    given = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "cli", *map(str, words)]
    seen: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                seen.append(piece)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    with subprocess.Popen(command, cwd=ROOT, env=given, stdout=theirs, stderr=theirs) as program:
        reader.start()
        program.wait(250)
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(seen).decode()


def test_on_a_terminal_pending_is_for_people(tmp_path: Path) -> None:
    evil = LevelMessage(level=5, topic="Orders", keys="k\x1b[2Jx")
    build_level_store(tmp_path / "source", [evil])
    shown = on_terminal("pending", tmp_path / "source", "--now", NOW, "--quiet")
    assert "2023-11-14T22:14:20Z (in 40s)  level 5" in shown
    assert "Orders/0" in shown
    assert r"k\x1b[2Jx" in shown


@pytest.mark.skipif(not INSTALLED.exists(), reason="delaywheel is not installed here")
@pytest.mark.check
@pytest.mark.spark
def test_the_installed_command_from_end_to_end(source: Path, tmp_path: Path) -> None:
    def installed(*words: object) -> Any:
        command = [str(INSTALLED), *map(str, words), "--json"]
        answer = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True
        )
        return json.loads(answer.stdout)

    assert installed("inspect", source, "--now", NOW)["pending"] == 3
    target = tmp_path / "target"
    assert installed("convert", source, target, "--now", NOW)["converted"] == 3
    assert installed("verify", "--in-process", source, target)["missing"] == 0
    assert installed("inspect", target, "--now", NOW)["wheel"]["pending"] == 3


def test_every_verb_takes_quiet_and_every_reading_verb_a_now() -> None:
    flags = {
        name: {flag for parameter in verb.params for flag in parameter.opts}
        for name, verb in cli.main.commands.items()
    }
    assert all("--quiet" in known for known in flags.values())
    asks_the_clock = {"inspect", "check", "convert", "pending", "export", "generate", "put-back"}
    asks_the_clock |= {"schedule", "run", "cancel", "read", "compare"}
    asks_the_clock |= {"consume", "groups", "dead-letters", "trace", "state", "reschedule"}
    assert {name for name, known in flags.items() if "--now" in known} == asks_the_clock
    assert isinstance(cli.main, click.Group)


@pytest.mark.check
@pytest.mark.spark
def test_an_interrupted_program_says_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "source"  # large enough not to be converted before the signal comes
    generate_level_store(source, messages=300_000, now_ms=1_795_268_475_441)
    command = [sys.executable, "-m", "cli", "convert", str(source), str(tmp_path / "target")]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts its background jobs, and so all that they start, deaf to SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        assert program.stderr is not None
        for line in program.stderr:
            if line.startswith("starting Spark"):
                program.send_signal(signal.SIGINT)
                break
        rest = program.stderr.read()
    assert program.returncode == cli.INTERRUPTED
    assert rest.splitlines()[-1] == "interrupted; the same command goes on where it stopped"
    assert "Traceback" not in rest


def test_an_interrupt_while_modules_are_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "delaywheel.terminal.main":
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "cli.py"))
    assert ended.value.code == cli.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_lost_queue_is_missed_by_verification_and_found_with_the_whole_log(
    target_conf: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    build_level_store(source, ITEMS, offsets={3: 1})
    shutil.rmtree(StoreRoot(source).level_queue(18))
    assert convert(source, tmp_path / "without", target_conf).exit_code == cli.DONE
    missed = run("verify", source, tmp_path / "without")
    assert missed.exit_code == cli.FINDINGS
    assert "convert anew, in the latter case with --whole-log" in missed.stdout
    found = convert(source, tmp_path / "with", target_conf, "--whole-log")
    assert "3 of 3 pending messages converted" in found.stdout, found.output
    assert run("verify", source, tmp_path / "with").exit_code == cli.DONE
