# SPDX-License-Identifier: Apache-2.0
"""The verbs that use an engine: what they store, deliver, take back and show, and what they say of
words and stores that do not fit.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from legacy_levels import LevelStore
from message_store import AtLevel, ManualClock, Message
from message_store.base.errors import OtherEngineWarning
from message_store.files.store_root import StoreRoot
from message_store.writing.settings import StoreSettings
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import WHEEL_55_CLEAN, unpack
from tests.source_laws import ROOT
from timer_wheel import WheelStore

NOW = "2026-01-02T03:04:05Z"
NOW_MS = 1_767_323_045_000
HANDLE = "djEgb3JkZXJzIGJyb2tlci1hIDE3OTMwMDAwOTAwMDAgT1JERVItNDI="
NAMES = ("levels", "wheel", "hierarchy", "time-index")
HELD = {
    "levels": "the levels",
    "wheel": "a wheel",
    "hierarchy": "a hierarchical wheel",
    "time-index": "a time index",
}
ENGINES = pytest.mark.parametrize("engine", NAMES)


def run(*words: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words], input=stdin)


def done(*words: object, stdin: str | bytes | None = None) -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == cli.DONE, result.output
    return result.stdout


def lines(*words: object, stdin: str | bytes | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(*words, "--json", stdin=stdin).splitlines()]


def schedule(store: Path, *words: object, engine: str = "wheel") -> dict[str, Any]:
    given = ("--topic", "orders", "--body", "cancel 42", "--engine", engine, "--now", NOW)
    [receipt] = lines("schedule", store, *given, *words)
    return receipt


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where there is no store yet."""
    return tmp_path / "store"


# --- a message's way through the verbs ------------------------------------------------------------


@ENGINES
def test_a_message_is_stored_listed_delivered_and_read(engine: str, place: Path) -> None:
    receipt = schedule(place, "--after", "30s", "--tags", "timeout", "--keys", "42", engine=engine)
    assert (receipt["due_ms"], receipt["promised_ms"]) == (NOW_MS + 30_000, NOW_MS + 30_000)
    [waiting] = lines("pending", place, "--now", NOW)
    assert waiting["unique_key"] == receipt["unique_key"]
    assert (waiting["topic"], waiting["due_ms"]) == ("orders", NOW_MS + 30_000)
    assert lines("run", place, "--now", NOW_MS + 29_999) == []
    [delivered] = lines("run", place, "--now", NOW_MS + 30_000)
    assert (delivered["body"], delivered["tags"], delivered["keys"]) == (
        "cancel 42", "timeout", ["42"],
    )  # fmt: skip
    assert (delivered["promised_ms"], delivered["lateness_ms"]) == (NOW_MS + 30_000, 0)
    assert lines("run", place, "--now", NOW_MS + 90_000) == []
    [read] = lines("read", place, "orders", "--now", NOW)
    assert read.items() <= delivered.items()
    assert lines("pending", place, "--now", NOW) == []


@ENGINES
def test_for_people(engine: str, place: Path) -> None:
    words = ("--topic", "orders", "--body", "x", "--after", "30s", "--unique-key", "K1")
    said = done("schedule", place, "--engine", engine, *words, "--now", NOW)
    assert said.splitlines()[0] == "orders: will be delivered at 2026-01-02T03:04:35Z (in 30s)"
    handle = said.splitlines()[1].removeprefix("handle: ")
    assert done("run", place, "--now", NOW) == (
        "0 messages delivered; the next is due 2026-01-02T03:04:35Z (in 30s)\n"
    )
    assert done("cancel", place, handle, "--now", NOW) == (
        "cancelled: orders K1, due 2026-01-02T03:04:35Z (in 30s)\n"
    )
    again = done("cancel", place, handle, "--now", NOW)
    assert again.startswith("cancelled: " if engine == "levels" else "already cancelled: orders K1")
    assert done("run", place, "--now", NOW_MS + 60_000) == ("0 messages delivered; nothing waits\n")


@pytest.mark.check
def test_json_holds_other_scripts_as_they_are_and_no_signs_that_turn_a_terminal(
    place: Path,
) -> None:
    tags = "\u53d6\u6d88\u202e\x9b"
    schedule(place, "--after", "1s", "--tags", tags)
    said = done("pending", place, "--json", "--now", NOW)
    assert '"tags": "\u53d6\u6d88\\u202e\\u009b"' in said
    assert json.loads(said)["tags"] == tags
    command = [sys.executable, "-m", "cli", "pending", str(place), "--json", "--now", NOW]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    raw = subprocess.run(command, cwd=ROOT, env=ascii_only, stdout=subprocess.PIPE, check=True)
    assert json.loads(raw.stdout.decode("ascii"))["tags"] == tags


def test_a_promise_is_not_rounded_below_what_was_asked_for(place: Path) -> None:
    words = ("--topic", "orders", "--body", "x", "--after", "1250ms", "--precision-ms", 100)
    said = done("schedule", place, "--engine", "wheel", *words, "--now", NOW)
    assert said.startswith(
        "orders: will be delivered at 2026-01-02T03:04:06.300Z (in 1s),"
        " requested 2026-01-02T03:04:06.250Z\n"
    )


def test_what_the_engine_can_keep_is_said_beside_what_was_asked_for(place: Path) -> None:
    words = ("--topic", "orders", "--body", "x", "--at", "2026-01-02T03:04:09.500Z")
    said = done("schedule", place, "--engine", "wheel", *words, "--now", NOW)
    assert said.startswith(
        "orders: will be delivered at 2026-01-02T03:04:10Z (in 5s),"
        " requested 2026-01-02T03:04:09.500Z\n"
    )
    late = done("schedule", place.with_name("levels"), "--engine", "levels", *words, "--now", NOW)
    assert late.startswith("orders: will be delivered at 2026-01-02T03:04:10Z (in 5s), requested")


@pytest.mark.parametrize(
    ("words", "due_ms"),
    [
        (["--after", "1h30m"], NOW_MS + 5_400_000),
        (["--after", "1500ms"], NOW_MS + 1_500),
        (["--after", "2d"], NOW_MS + 172_800_000),
        (["--at", NOW_MS + 7_000], NOW_MS + 7_000),
        (["--at", "2026-01-02T03:04:12Z"], NOW_MS + 7_000),
        (["--at", "2025-01-01"], 1_735_689_600_000),
        (["--level", "5"], NOW_MS + 60_000),
        (["--level", "99"], NOW_MS + 7_200_000),
    ],
)
def test_due_times_as_people_write_them(words: list[object], due_ms: int, place: Path) -> None:
    assert schedule(place, *words)["due_ms"] == due_ms


@ENGINES
def test_a_message_keeps_all_that_was_said_of_it(engine: str, place: Path) -> None:
    words = ("--property", "shop=7", "--property", "note=a=b", "--queue-id", 3, "--keys", "a b")
    schedule(place, *words, "--level", 1, "--keys", "c", "--unique-key", "K1", engine=engine)
    [delivered] = lines("run", place, "--now", NOW_MS + 1_000)
    assert delivered["properties"].items() >= {"shop": "7", "note": "a=b"}.items()
    assert (delivered["queue_id"], delivered["unique_key"]) == (3, "K1")
    assert delivered["keys"] == ["a", "b", "c"]


def test_a_body_of_any_bytes_comes_from_a_file_and_is_shown_as_base64(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00")
    how = ("--topic", "raw", "--engine", "wheel", "--level", 1, "--now", NOW)
    done("schedule", place, *how, "--body-file", tmp_path / "body")
    done("schedule", place, *how, "--body-file", "-", stdin=b"\xfe")
    delivered = lines("run", place, "--now", NOW_MS + 1_000)
    assert [each["body_base64"] for each in delivered] == ["/wA=", "/g=="]
    assert "body" not in delivered[0]


# --- many messages --------------------------------------------------------------------------------

MANY = """\
{"topic": "orders", "body": "one", "after": "5s", "keys": "a b", "tags": "t"}

{"topic": "orders", "body_base64": "dHdv", "level": 2, "properties": {"x": "y"}, "queue_id": 1}
{"topic": "bills", "body": "three", "at": "2026-01-02T03:04:10Z", "keys": ["c"], "tags": null}
"""


@ENGINES
def test_a_file_of_messages(engine: str, place: Path) -> None:
    words = ("--engine", engine, "--lines", "-", "--now", NOW)
    receipts = lines("schedule", place, *words, stdin=MANY)
    assert [receipt["topic"] for receipt in receipts] == ["orders", "orders", "bills"]
    delivered = lines("run", place, "--now", NOW_MS + 5_000)
    assert [each["body"] for each in delivered] == ["one", "two", "three"]
    assert [each["keys"] for each in delivered] == [["a", "b"], [], ["c"]]
    assert delivered[1]["properties"]["x"] == "y"


def test_a_file_of_messages_for_people(place: Path) -> None:
    words = ("--engine", "wheel", "--lines", "-", "--now", NOW)
    said = done("schedule", place, *words, stdin=MANY)
    handles = [line.removeprefix("handle: ") for line in said.splitlines() if "handle: " in line]
    assert said.splitlines()[::2] == [
        "orders: will be delivered at 2026-01-02T03:04:10Z (in 5s)",
        "orders: will be delivered at 2026-01-02T03:04:10Z (in 5s)",
        "bills: will be delivered at 2026-01-02T03:04:10Z (in 5s)",
        "3 messages stored, due 2026-01-02T03:04:10Z (in 5s)",
    ]
    assert done("cancel", place, *handles, "--now", NOW).count("cancelled: ") == 3
    assert done("schedule", place, *words, stdin="\n") == "0 messages stored\n"


def test_of_very_many_messages_the_first_handles_are_shown(place: Path) -> None:
    words = ("--engine", "wheel", "--lines", "-", "--now", NOW)
    said = done("schedule", place, *words, stdin='{"topic": "a", "body": "", "level": 1}\n' * 23)
    assert said.count("handle: ") == 20
    assert "... and 3 more; --json prints every handle\n23 messages stored" in said


def test_a_file_may_begin_with_a_byte_order_mark(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + MANY.encode())
    words = ("schedule", place, "--engine", "wheel", "--now", NOW)
    assert len(lines(*words, "--lines", file)) == 3
    assert len(lines(*words, "--lines", "-", stdin=file.read_bytes())) == 3


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"topic": "a"', "not JSON: Expecting ',' delimiter at column"),
        ("[]", "a message is a JSON object"),
        ('{"body": "x", "level": 1}', "'topic' is missing"),
        ('{"topic": "a", "body": "x", "aftr": "1s"}', "'aftr' is no field of a message; these are"),
        ('{"topic": "a", "body": "x"}', 'give exactly one of "at", "after", "level" (none was'),
        (
            '{"topic": "a", "body": "x", "level": 1, "after": "5s"}',
            '("after" and "level" were',
        ),
        (
            '{"topic": "a", "body": "x", "after": 5}',
            "'after' cannot be 5; it is a text such as 90s",
        ),
        ('{"topic": "a", "body": "x", "after": "5"}', "'5' is not a duration such as 90s"),
        ('{"topic": "a", "body": "x", "at": 5}', "'5' looks like seconds"),
        ('{"topic": "a", "body": "x", "at": "noon"}', "neither ISO 8601 nor epoch milliseconds"),
        (
            '{"topic": "a", "body": "x", "level": 0}',
            "'level' cannot be 0; it is a whole number from 1",
        ),
        (
            '{"topic": "a", "body": "x", "level": true}',
            "'level' cannot be true; it is a whole number",
        ),
        ('{"topic": "a", "level": 1}', 'give exactly one of "body" and "body_base64"'),
        ('{"topic": "a", "body": {}, "level": 1}', "'body' cannot be {}; it is a text"),
        ('{"topic": "a", "body_base64": "*", "level": 1}', "'body_base64' is not base64"),
        ('{"topic": "\\ud800", "body": "x", "level": 1}', "is not text"),
        ('{"topic": "a", "body": "x", "level": 1, "keys": [1]}', "'keys' holds 1, which is not"),
        ('{"topic": "a", "body": "x", "level": 1, "queue_id": -1}', "'queue_id' cannot be -1"),
        (
            '{"topic": "a", "body": "x", "level": 1, "unique_key": ""}',
            "'unique_key' must not be empty",
        ),
    ],
)
def test_a_line_that_is_no_message_is_named_and_nothing_is_stored(
    line: str, sentence: str, place: Path
) -> None:
    good = '{"topic": "a", "body": "x", "level": 1}\n'
    result = run("schedule", place, "--engine", "wheel", "--lines", "-", stdin=good + line)
    refused(result, cli.USAGE, "line 2: ", sentence)
    assert not place.exists()


@ENGINES
def test_of_messages_that_cannot_all_be_kept_none_is_stored(engine: str, place: Path) -> None:
    good = '{"topic": "a", "body": "x", "after": "1s"}\n'
    long = '{"topic": "a", "body": "x", "after": "400d"}\n'
    words = ("schedule", place, "--engine", engine, "--lines", "-", "--now", NOW)
    refused(run(*words, stdin=good + "\n" + long + good), cli.USAGE, "line 3: a delay of 400")
    refused(run(*words, stdin="\n" + long), cli.USAGE, "line 2: a delay of 400")
    bad = '{"topic": "a b", "body": "x", "after": "1s"}\n'
    refused(run(*words, stdin=good + "\n" + bad), cli.USAGE, "line 3: the topic's name has a slash")
    bad = '{"topic": "a", "body": "x", "after": "1s", "properties": {"": ""}}\n'
    refused(run(*words, stdin=good + "\n" + bad), cli.USAGE, "line 3: ")
    done(*words, stdin=good + good)
    assert len(lines("pending", place, "--now", NOW)) == 2


@ENGINES
def test_a_level_that_is_not_in_the_table_is_lowered_aloud(engine: str, place: Path) -> None:
    words = ("--engine", engine, "--now", NOW)
    said = run("schedule", place, *words, "--topic", "a", "--body", "x", "--level", 19)
    assert said.exit_code == cli.DONE
    assert "no level 19: level 18 (2h) is taken instead" in said.stderr
    line = '{"topic": "a", "body": "x", "level": 20}\n'
    many = run("schedule", place, *words, "--lines", "-", stdin=line + line)
    assert many.stderr.count("no level 20: level 18 (2h)") == 1


@ENGINES
def test_a_time_that_is_past_is_listed_as_it_was_promised(engine: str, place: Path) -> None:
    at = ("--now", NOW_MS + 437)
    given = ("--engine", engine, "--topic", "a", "--body", "x", "--at", "2025-01-01", *at)
    [receipt] = lines("schedule", place, *given)
    [listed] = lines("pending", place, *at)
    assert listed["due_ms"] == receipt["promised_ms"] == NOW_MS + 437
    assert len(lines("pending", place, "--due-before", NOW_MS + 438, *at)) == 1
    assert lines("pending", place, "--due-before", NOW_MS + 437, *at) == []
    assert len(lines("pending", place, "--due-after", NOW_MS + 437, *at)) == 1
    assert lines("pending", place, "--due-after", NOW_MS + 438, *at) == []


# --- taking back ----------------------------------------------------------------------------------


@ENGINES
def test_a_cancellation_has_a_definite_answer(engine: str, place: Path) -> None:
    first = schedule(place, "--level", 1, "--unique-key", "K1", engine=engine)["handle"]
    second = schedule(place, "--level", 3, "--unique-key", "K2", engine=engine)["handle"]
    assert len(lines("run", place, "--now", NOW_MS + 1_000)) == 1
    result = run("cancel", place, first, second, "--now", NOW_MS + 2_000, "--json")
    assert result.exit_code == cli.FINDINGS
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["cancellation"] for answer in answers] == ["already delivered", "cancelled"]
    assert [answer["unique_key"] for answer in answers] == ["K1", "K2"]
    assert answers[0]["handle"] == first
    assert lines("pending", place, "--now", NOW) == []
    other = schedule(place.with_name("other"), "--level", 4, engine=engine)["handle"]
    never = run("cancel", place, other, "--now", NOW)
    assert (never.exit_code, never.stdout.split(":")[0]) == (cli.FINDINGS, "never existed")
    assert ", due " not in never.stdout


# --- which engine, which settings -----------------------------------------------------------------


def test_a_new_store_needs_the_name_of_an_engine(place: Path) -> None:
    result = run("schedule", place, "--topic", "a", "--body", "x", "--after", "1s")
    refused(result, cli.USAGE, "holds neither levels nor a wheel yet", "--engine in a shell")
    assert not place.exists()


@ENGINES
def test_an_engine_is_told_by_what_the_directory_holds(engine: str, place: Path) -> None:
    schedule(place, "--level", 1, engine=engine)
    words = ("--topic", "orders", "--body", "x", "--after", "65s", "--now", NOW)
    [receipt] = lines("schedule", place, *words)
    late_ms = 120_000 if engine == "levels" else 65_000
    assert receipt["promised_ms"] == NOW_MS + late_ms


def test_where_both_have_left_something_one_is_named_and_the_other_left_alone(place: Path) -> None:
    schedule(place, "--level", 2, "--unique-key", "L", engine="levels")
    with pytest.warns(OtherEngineWarning, match="messages may wait in the levels"):
        store = WheelStore.open(place, clock=ManualClock(NOW_MS))
    with store:
        store.schedule(Message("orders", b"x", unique_key="B"), AtLevel(1))
    schedule(place, "--level", 3, "--unique-key", "W", engine="wheel")
    schedule(place, "--level", 4, "--unique-key", "K", engine="levels")
    assert {each["unique_key"] for each in lines("pending", place, "--now", NOW)} == {
        "L", "B", "W", "K",
    }  # fmt: skip
    later = ("--now", NOW_MS + 60_000, "--json")
    refused(run("run", place, *later), cli.USAGE, "holds both the levels and a wheel")
    wheel = run("run", place, "--engine", "wheel", *later)
    assert "2 messages wait in the levels, and this engine leaves them there" in wheel.stderr
    assert [json.loads(line)["unique_key"] for line in wheel.stdout.splitlines()] == ["B", "W"]
    levels = run("run", place, "--engine", "levels", *later)
    assert [json.loads(line)["unique_key"] for line in levels.stdout.splitlines()] == ["L", "K"]


def test_a_wheel_that_was_cut_is_made_anew_aloud_and_once(place: Path) -> None:
    schedule(place, "--after", "60s")
    wheel = place / "timerwheel"
    size_bytes = wheel.stat().st_size
    os.truncate(wheel, 1_000)
    words = ["run", place, "--json", "--for", "10m", "--now", NOW]
    first, again = run(*words), run(*words)
    said = f"warning: {wheel}: had the wrong length; rebuilt from the timer log\n"
    assert said in first.stderr
    assert "rebuilt" not in again.stderr
    assert len(first.stdout.splitlines()) == 1
    assert wheel.stat().st_size == size_bytes


@ENGINES
@pytest.mark.parametrize(
    "words", [("run", "--now", NOW), ("cancel", HANDLE)], ids=["run", "cancel"]
)
def test_an_engine_that_a_store_does_not_have_is_refused(
    words: tuple[str, ...], engine: str, place: Path
) -> None:
    schedule(place, "--level", 1, engine=engine)
    other = "wheel" if engine == "levels" else "levels"
    held = HELD[engine]
    verb, *more = words
    result = run(verb, place, *more, "--engine", other)
    refused(result, cli.USAGE, f"a store of {held}; nothing was ever put into its {other}")


@pytest.mark.parametrize(("first", "other"), list(itertools.permutations(NAMES, 2)))
def test_a_message_for_an_engine_that_a_store_does_not_have_is_refused_before_anything_is_written(
    first: str, other: str, place: Path
) -> None:
    schedule(place, "--level", 1, engine=first)
    before = files_below(place)
    words = ("--topic", "orders", "--body", "x", "--level", 2, "--engine", other, "--now", NOW)
    result = run("schedule", place, *words)
    if {first, other} == {"wheel", "hierarchy"}:  # one wheel takes the other over
        assert result.exit_code == cli.DONE, result.output
        assert len(lines("pending", place, "--now", NOW)) == 2
        assert len(lines("run", place, "--now", NOW, "--for", "1m")) == 2
        return
    held = HELD[first]
    refused(result, cli.USAGE, f"a store of {held}", f"into its {other}", "use another directory")
    assert ("delaywheel convert" in result.stderr) == (first == "levels")
    assert files_below(place) == before
    schedule(place, "--level", 2, engine=first)


def files_below(place: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file, with its time of change and its beginning."""

    def beginning(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(1 << 20)

    files = (path for path in place.rglob("*") if path.is_file())
    return {file: (file.stat().st_mtime_ns, beginning(file)) for file in files}


def test_a_level_table_of_ones_own(place: Path) -> None:
    table = ("--level-table", "3s 7s")
    receipt = schedule(place, "--level", 2, *table, engine="levels")
    assert receipt["promised_ms"] == NOW_MS + 7_000
    refused(run("run", place, "--now", NOW), cli.USAGE, "7s")
    assert len(lines("run", place, *table, "--now", NOW_MS + 7_000)) == 1


def writes_as_5x(place: Path) -> bool:
    return "dataVersion" in StoreRoot(place).config_file("delayOffset.json").read_text()


def test_for_brokers_of_which_version(place: Path) -> None:
    schedule(place, "--level", 3, engine="levels")
    assert not writes_as_5x(place)
    newer = place.with_name("newer")
    schedule(newer, "--level", 3, "--dialect", "5.4", engine="levels")
    assert writes_as_5x(newer)
    lines("run", newer, "--now", NOW_MS + 10_000)
    assert writes_as_5x(newer)


def test_the_levels_of_a_5x_broker_stay_those_of_one(place: Path) -> None:
    build_level_store(place, [LevelMessage(level=3)], dialect="5.4", offsets={3: 0})
    lines("run", place, "--now", T0 + 10_000)
    assert writes_as_5x(place)


def test_a_version_that_has_no_wheel(place: Path) -> None:
    words = ("--topic", "a", "--body", "x", "--level", 1, "--dialect", "4.9")
    refused(run("schedule", place, "--engine", "wheel", *words), cli.USAGE, "have no wheel")


def test_a_wheel_of_another_precision(place: Path) -> None:
    receipt = schedule(place, "--after", "1250ms", "--precision-ms", 100)
    assert receipt["promised_ms"] == NOW_MS + 1_300
    assert len(lines("run", place, "--precision-ms", 100, "--now", NOW_MS + 1_300)) == 1
    levels = ("--engine", "levels", "--topic", "a", "--body", "x", "--level", 1)
    result = run("schedule", place.with_name("levels"), *levels, "--precision-ms", 100)
    refused(result, cli.USAGE, "--precision-ms is for the wheel")


def test_a_wheel_of_another_precision_on_which_messages_wait(place: Path, tmp_path: Path) -> None:
    schedule(place, "--after", "1h")
    conf = tmp_path / "broker.conf"
    conf.write_text("timerPrecisionMs=100\n")
    for flags in (("--precision-ms", 100), ("--broker-conf", conf)):
        result = run("run", place, *flags, "--now", NOW_MS)
        refused(result, cli.USAGE, "slots of 1000 ms, not 100: give --precision-ms 1000")
        assert "on_precision_change" not in result.stderr


def test_the_settings_of_a_broker(place: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=b7\ntimerPrecisionMs=500\ntimerMaxDelaySec=60\nmessageDelayLevel=2s 4s\n"
        "mappedFileSizeCommitLog=65536\nfileReservedTime=24\n"
    )
    receipt = schedule(place, "--level", 2, "--broker-conf", conf)
    assert receipt["promised_ms"] == NOW_MS + 4_000
    from message_store.format.recall_handle import RecallHandle

    assert RecallHandle.parse(receipt["handle"]).broker_name == "b7"
    assert [path.stat().st_size for path in StoreRoot(place).commit_log.iterdir()] == [65_536]
    assert run("cancel", place, receipt["handle"], "--now", NOW).exit_code == cli.DONE
    other = run("cancel", place, receipt["handle"], HANDLE, "--now", NOW)
    refused(other, cli.USAGE, "handles of 2 brokers; a store is one broker's")
    words = ("--topic", "a", "--body", "x", "--after", "61s", "--broker-conf", conf, "--now", NOW)
    refused(run("schedule", place, *words), cli.USAGE, "61s", "1m", "timerMaxDelaySec in --broker")


# --- a broker's store -----------------------------------------------------------------------------


def test_a_broker_s_levels_are_delivered_and_read(place: Path) -> None:
    items = [
        LevelMessage(level=3, topic="Orders", unique_key="A"),
        LevelMessage(level=5, topic="Orders", unique_key="B"),
    ]
    build_level_store(place, items)
    assert lines("read", place, "Orders", "--now", T0) == []
    [delivered] = lines("run", place, "--now", T0 + 20_000)
    assert (delivered["unique_key"], delivered["promised_ms"]) == ("A", T0 + 10_000)
    [read] = lines("read", place, "Orders", "--now", T0)
    assert read["unique_key"] == "A"
    [left] = lines("pending", place, "--now", T0 + 20_000)
    assert (left["unique_key"], left["due_ms"]) == ("B", T0 + 60_000)


def test_what_could_not_be_delivered_is_named(tmp_path: Path) -> None:
    waiting = [LevelMessage(level=3, body=bytes([number]) * 100) for number in range(3)]
    store = build_level_store(tmp_path / "store", waiting).root
    log = min((store / "commitlog").iterdir())
    data = log.read_bytes()
    log.write_bytes(data.replace(b"\1" * 100, b"\1" * 99 + b"\0"))
    result = run("run", store, "--engine", "levels", "--now", T0 + 3_600_000)
    assert result.exit_code == cli.FINDINGS
    assert "2 messages delivered" in result.stdout
    assert "level 3, queue offset 1: a message could not be delivered" in result.stderr


def test_a_run_on_a_store_without_its_first_log_file_names_what_is_lost(tmp_path: Path) -> None:
    waiting = [LevelMessage(level=3, body=bytes([number]) * 1_000) for number in range(9)]
    built = build_level_store(
        tmp_path / "store", waiting, commit_log_file_bytes=4_096, offsets={3: 0}
    )
    files = sorted((built.root / "commitlog").iterdir())
    assert len(files) > 1
    files[0].unlink()
    result = run("run", built.root, "--engine", "levels", "--now", T0 + 3_600_000)
    assert result.exit_code == cli.FINDINGS
    assert "level 3, queue offset 0: a message could not be delivered: the commit log has lost" in (
        result.stderr
    )


@pytest.mark.parametrize("kind", ["empty", "zero", "end"])
def test_a_store_whose_log_lost_records_ends_a_look_at_it_with_an_exit_code(
    kind: str, place: Path
) -> None:
    store = LevelStore.open(
        place, clock=ManualClock(NOW_MS), settings=StoreSettings(commit_log_file_bytes=4_096)
    )
    for _ in range(9):
        store.schedule(Message("orders", b"x" * 1_000), AtLevel(3))
    store.close()
    files = sorted((place / "commitlog").iterdir())
    file = files[-1] if kind == "end" else files[0]
    file.write_bytes(b"" if kind == "empty" else bytes(4_096))
    for verb in ("inspect", "pending"):
        result = run(verb, place, "--now", NOW)
        assert result.exit_code == cli.SOURCE_UNREADABLE, (verb, result.output)
        assert result.stdout
        assert file.name in result.stderr


def test_a_level_that_lost_its_queue_is_named(tmp_path: Path) -> None:
    waiting = [LevelMessage(level=level) for level in (3, 4, 3, 4)]
    store = build_level_store(tmp_path / "store", waiting).root
    shutil.rmtree(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2")
    result = run("run", store, "--engine", "levels", "--now", T0 + 3_600_000)
    assert "4 messages delivered" in result.stdout
    assert "2 entries were missing or damaged" in result.stderr


@pytest.mark.parametrize("damage", ["zeros", "file", "directory"])
def test_a_run_says_what_its_opening_had_to_make_anew(damage: str, place: Path) -> None:
    _, cancelled = (
        schedule(place, "--after", "30s", "--unique-key", key, engine="levels") for key in "AB"
    )
    done("cancel", place, cancelled["handle"], "--now", NOW)
    [queue] = (place / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "3").iterdir()
    if damage == "zeros":
        with queue.open("r+b") as file:
            file.write(bytes(40))
    elif damage == "file":
        queue.unlink()
    else:
        shutil.rmtree(queue.parent)
    result = run("run", place, "--json", "--now", NOW_MS + 60_000)
    keys = [json.loads(line)["unique_key"] for line in result.stdout.splitlines()]
    assert keys == ["A", "B"]
    assert f"{place}: consumequeue: 2 entries were missing or damaged" in result.stderr
    assert "of cancelled messages, they may be delivered" in result.stderr
    assert "missing" not in run("run", place, "--now", NOW_MS + 60_000).stderr


@pytest.mark.check
def test_a_broker_s_wheel_is_delivered(tmp_path: Path) -> None:
    store = unpack(WHEEL_55_CLEAN, tmp_path / "store")
    at = ("--now", store.stopped_ms)
    waiting = [each for each in lines("pending", store.root, *at) if each["level"] is None]
    end_ms = max(each["due_ms"] for each in waiting)
    words = ("--engine", "wheel", *at, "--until", end_ms)
    delivered = lines("run", store.root, *words)
    assert sorted(each["unique_key"] for each in delivered) == sorted(
        each["unique_key"] for each in waiting
    )
    assert all(each["lateness_ms"] >= 0 for each in delivered)


# --- reading --------------------------------------------------------------------------------------


def test_queues_ordinals_and_how_many(place: Path) -> None:
    made = [
        {"topic": "a", "body": f"{number}", "level": 1, "queue_id": number % 2}
        for number in range(6)
    ]
    many = "\n".join(map(json.dumps, made))
    done("schedule", place, "--engine", "wheel", "--lines", "-", "--now", NOW, stdin=many)
    assert len(lines("run", place, "--now", NOW_MS + 1_000)) == 6

    def bodies(*words: object) -> list[str]:
        return [each["body"] for each in lines("read", place, "a", *words)]

    assert bodies() == ["0", "2", "4", "1", "3", "5"]
    assert bodies("--queue-id", 1) == ["1", "3", "5"]
    assert bodies("--queue-id", 1, "--from", 1, "--limit", 1) == ["3"]
    assert bodies("--from", 2) == ["4", "5"]
    assert bodies("--from", 3) == bodies("--queue-id", 7) == bodies("--limit", 0) == []


def test_a_topic_that_is_not_there_is_told_from_an_empty_one(place: Path) -> None:
    build_level_store(place, [LevelMessage(level=3)])
    for topic in ("Order", "../consumequeue/Orders"):
        result = run("read", place, topic)
        assert (result.exit_code, result.stdout) == (cli.DONE, "")
        assert f"nothing was ever put into {topic}; it holds no topic yet" in result.stderr
    result = run("read", place, "SCHEDULE_TOPIC_XXXX", "--queue-id", 7)
    assert (result.exit_code, result.stdout) == (cli.DONE, "")
    assert "put into queue 7 of SCHEDULE_TOPIC_XXXX; it has 2" in result.stderr


def test_a_message_that_cannot_be_read_is_named(place: Path) -> None:
    torn = LevelMessage(level=4, damage=lambda data: data[:90] + bytes(len(data) - 90))
    build_level_store(place, [torn, LevelMessage(level=4)])
    result = run("read", place, "SCHEDULE_TOPIC_XXXX", "--queue-id", 3)
    assert result.exit_code == cli.FINDINGS
    assert len(result.stdout.splitlines()) == 1
    assert "cannot be read: queue 3, queue offset 0, log offset 0: " in result.stderr


# --- refusals -------------------------------------------------------------------------------------

ORDER = ("schedule", "S", "--topic", "a", "--body", "x")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("schedule", "S", "--body", "x", "--level", 1), "missing --topic (or use --lines"),
        (
            ("schedule", "S", "--topic", "a", "--level", 1),
            "give exactly one of --body and --body-file",
        ),
        (ORDER, "give exactly one of --at, --after, --level (none was given)"),
        ((*ORDER, "--after", "5s", "--level", 1), "(--after and --level were given)"),
        ((*ORDER, "--after", "5"), "'5' is not a duration such as 90s, 1h30m, 250ms or 2d"),
        ((*ORDER, "--after", "-5s"), "'-5s' is not a duration"),
        ((*ORDER, "--after", "9" * 20 + "d"), "9d' is too long for a duration"),
        ((*ORDER, "--level", 0), "0 is not in the range x>=1"),
        ((*ORDER, "--level", 1, "--unique-key", ""), "'unique_key' must not be empty"),
        ((*ORDER, "--level", 1, "--tags", ""), "--tags must not be empty"),
        ((*ORDER, "--lines", "-"), "--lines brings the messages; --topic does not go with it"),
        (("schedule", "S", "--lines", "-", "--after", "1s"), "--after does not go with it"),
        (("schedule", "S", "--lines", "-", "--property", "a=b"), "--property does not go with it"),
        ((*ORDER, "--level", 1, "--engine", "rocks"), "'rocks' is not one of"),
        ((*ORDER, "--level", 1, "--precision-ms", 250), "'250' is not one of"),
        ((*ORDER, "--level", 1, "--broker-conf", "no.conf"), "no.conf: no such file"),
        (("run", "S", "--for", "1m", "--until", NOW), "--until and --for cannot be combined"),
        (("run", "S", "--for", "soon"), "'soon' is not a duration"),
        (("cancel", "S"), "give either handles or --key"),
        (("cancel", "S", "no handle"), "not a recall handle"),
        (("read", "S"), "Missing argument 'TOPIC'"),
    ],
)
def test_wrong_usage(
    words: tuple[object, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] == "schedule" and "--engine" not in words:
        words = (*words, "--engine", "wheel")
    refused(run(*words), cli.USAGE, sentence)
    assert not (tmp_path / "S").exists()


OPENERS = [
    ("run", "--now", NOW), ("cancel", HANDLE), ("read", "a"),
    ("schedule", "--topic", "a", "--body", "x", "--level", 1, "--engine", "wheel"),
]  # fmt: skip


@ENGINES
def test_a_place_where_nothing_can_be_made_is_no_fault_of_a_source(
    engine: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    words = ("--topic", "a", "--body", "x", "--level", 1, "--engine", engine)
    refused(run("schedule", place, *words), cli.TARGET_UNWRITABLE, f"{place}: cannot be written")


@pytest.mark.parametrize("words", OPENERS, ids=lambda words: words[0])
def test_places_that_are_no_store(words: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notes.txt").write_text("mine")
    verb, *more = words
    for name, sentence in (
        ("file", "not a directory"),
        ("home", "not a store directory: there is no commitlog/"),
        ("nowhere", "no such directory"),
    ):
        if verb != "schedule" or name != "nowhere":
            refused(run(verb, tmp_path / name, *more), cli.SOURCE_UNREADABLE, sentence)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "home", "notes.txt"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--topic", "a/b"), "a/b"),
        (("--topic", "a", "--property", "REAL_TOPIC=x"), "REAL_TOPIC"),
        (("--topic", "a", "--property", "x=a\x01b"), "0x01"),
    ],
)
@ENGINES
def test_a_message_that_no_record_can_hold(
    words: tuple[object, ...], sentence: str, engine: str, place: Path
) -> None:
    result = run("schedule", place, "--engine", engine, "--body", "x", "--level", 1, *words)
    refused(result, cli.USAGE, sentence)


def test_an_unfinished_conversion_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "target" / "delaywheel" / "staging").mkdir(parents=True)
    refused(run("run", tmp_path / "target"), cli.SOURCE_UNREADABLE, "an unfinished conversion")


# --- as a program ---------------------------------------------------------------------------------


def program(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "cli", *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts its background jobs, and so all that they start, deaf to SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ("levels", signal.SIGINT),
        pytest.param("levels", signal.SIGTERM, marks=pytest.mark.check),
        pytest.param("wheel", signal.SIGINT, marks=pytest.mark.check),
        ("wheel", signal.SIGTERM),
        pytest.param("wheel", signal.SIGHUP, marks=pytest.mark.check),
    ],
)
def test_a_run_delivers_on_time_and_ends_cleanly_on_a_signal(
    engine: str, number: signal.Signals, place: Path
) -> None:
    words = ("--topic", "orders", "--body", "x", "--level", 1, "--unique-key", "K1")
    done("schedule", place, "--engine", engine, *words)
    done("schedule", place, *words[:4], "--after", "1h")
    with program("run", place, "--json") as running:
        assert running.stdout is not None
        [line] = [running.stdout.readline()]
        busy = run("schedule", place, *words)
        running.send_signal(number)
        rest, errors = running.communicate(timeout=250)
    delivered = json.loads(line)
    assert delivered["unique_key"] == "K1"
    assert delivered["lateness_ms"] >= 0
    refused(
        busy,
        cli.SOURCE_UNREADABLE,
        f"held by another process (pid {running.pid}) that runs delaywheel",
    )
    assert (running.returncode, rest) == (cli.DONE, "")
    assert f"1 message delivered until {number.name}; the next is due" in errors
    assert "Traceback" not in errors
    assert StoreRoot(place).was_stopped_cleanly
    assert len(lines("pending", place)) == 1


@pytest.mark.check
def test_a_run_that_was_to_last_longer_says_so(place: Path) -> None:
    done("schedule", place, "--engine", "wheel", *ORDER[2:], "--after", "1h")
    with program("run", place, "--for", "1h") as running:
        assert running.stderr is not None
        running.stderr.readline()
        while not StoreRoot(place).abort.exists():
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=250)
    assert running.returncode == cli.INTERRUPTED


@pytest.mark.check
def test_a_run_ends_when_nobody_reads_what_it_delivers(place: Path) -> None:
    many = '{"topic": "a", "body": "x", "level": 1}\n' * 10_000
    done("schedule", place, "--engine", "wheel", "--lines", "-", stdin=many)
    with program("run", place, "--json", "--quiet") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(250) == cli.DONE
    assert StoreRoot(place).was_stopped_cleanly


def test_a_store_changes_hands_in_the_shell(place: Path) -> None:
    schedule(place, "--after", "1250ms", "--unique-key", "K", engine="wheel")
    fine = schedule(place, "--after", "1237ms", "--unique-key", "F", engine="hierarchy")
    assert fine["promised_ms"] == NOW_MS + 1_237
    assert run("inspect", place, "--now", NOW).exit_code == cli.DONE
    waiting = {each["unique_key"]: each["due_ms"] for each in lines("pending", place, "--now", NOW)}
    assert waiting == {"K": NOW_MS + 2_000, "F": NOW_MS + 1_237}
    refused(
        run("run", place, "--engine", "wheel", "--precision-ms", "1"), cli.USAGE, "--engine hier"
    )
    found = lines("run", place, "--engine", "wheel", "--now", NOW_MS + 2_000)
    assert {each["unique_key"] for each in found} == {"K", "F"}
    assert lines("pending", place, "--now", NOW) == []


def test_a_change_of_engine_is_said_with_what_it_does_to_due_times(place: Path) -> None:
    after = ("--topic", "orders", "--body", "a", "--after", "90s", "--now")
    first = run("schedule", place, "--engine", "hierarchy", *after, "2026-01-02T03:04:05.250Z")
    assert (first.exit_code, first.stderr) == (cli.DONE, "")
    coarse = run("schedule", place, "--engine", "wheel", *after, NOW)
    assert "from a hierarchical wheel to a wheel: due times move to the end of" in coarse.stderr
    assert "up to 1000 ms later" in coarse.stderr
    assert len(coarse.stderr.splitlines()) == 1, "a sentence in the place of the wheel is no damage"
    dues = [each["due_ms"] for each in lines("pending", place, "--now", NOW)]
    assert dues == [NOW_MS + 90_000, NOW_MS + 91_000]
    assert run("cancel", place, HANDLE, "--engine", "wheel", "--now", NOW).stderr == ""
    fine = run("cancel", place, HANDLE, "--engine", "hierarchy", "--now", NOW)
    assert "from a wheel to a hierarchical wheel: no broker starts on it" in fine.stderr


def test_an_inspection_says_hierarchy_and_not_a_broker_s_wheel(place: Path) -> None:
    schedule(place, "--after", "90s", engine="hierarchy")
    said = done("inspect", place, "--now", NOW)
    assert "delaywheel-hierarchy, stopped cleanly (there is a hierarchical wheel, on which" in said
    assert "hierarchical wheel: 1 pending" in said
    assert "1 in its index, in 1 of its hours, minutes and seconds; 0 cancelled" in said
    assert "timer wheel" not in said
    assert json.loads(done("inspect", place, "--json"))["wheel"]["engine"] == "hierarchy"
    schedule(place, "--after", "90s", engine="wheel")
    found = json.loads(done("inspect", place, "--json", "--now", NOW))
    assert (found["format"], found["wheel"]["engine"]) == ("rocketmq-5", "wheel")


def test_an_inspection_that_cannot_tell_what_is_pending_ends_with_a_code(place: Path) -> None:
    schedule(place, "--after", "90s", engine="hierarchy")
    for index in place.glob("delaywheel/hierarchy/**/*.log"):
        index.write_bytes(b"no index")
    for table in place.glob("delaywheel/hierarchy/**/MANIFEST-*"):
        table.write_bytes(b"no manifest")
    found = run("inspect", place)
    assert found.exit_code == cli.SOURCE_UNREADABLE
    assert "how many messages are pending cannot be told" in found.stdout
    told = " ".join(found.stderr.split())
    assert "the wheel cannot be read" in told
    assert "--engine hierarchy` makes the index anew from the timer queue" in told
    done("run", place, "--engine", "hierarchy", "--for", "1ms", "--now", NOW)
    assert json.loads(done("inspect", place, "--json"))["pending"] == 1


@pytest.mark.parametrize("engine", NAMES)
def test_a_store_that_was_not_closed_is_told_by_its_engine(place: Path, engine: str) -> None:
    schedule(place, "--after", "90s", engine=engine)
    (place / "abort").touch()
    said = " ".join(run("inspect", place).stderr.split())
    assert "ended without closing the store" in said
    is_brokers = engine in {"levels", "wheel"}
    assert ("a broker started on it repeats" in said) == is_brokers
    assert ("the next opening recovers what was flushed" in said) != is_brokers


@ENGINES
@pytest.mark.parametrize("there", ["nothing", "its parent", "an empty directory"])
def test_a_refused_message_leaves_no_new_store(tmp_path: Path, engine: str, there: str) -> None:
    place = tmp_path / "new" / "store"
    if there != "nothing":
        (place if there == "an empty directory" else place.parent).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    words = ("schedule", place, "--engine", engine, "--topic", "a", "--body", "x")
    result = run(*words, "--after", "9000d")
    assert result.exit_code != cli.DONE
    assert sorted(tmp_path.rglob("*")) == before
    assert run(*words, "--after", "90s").exit_code == cli.DONE
    assert run(*words, "--after", "9000d").exit_code == result.exit_code
    assert len(list((place / "commitlog").iterdir())) == 1
