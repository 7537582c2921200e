# SPDX-License-Identifier: Apache-2.0
"""The verbs for one message: what a trace prints, and what cancel and reschedule change by key."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

import cli
from consumer_groups import consumer_group, message_state
from delaywheel import open_store
from message_store import AfterMs, ManualClock, Message
from message_store.format.record_layout import HEAD_V4_V4
from message_store.reading.engine_choice import EngineName
from tests.faults.damage import flip

NOW = "2026-01-02T03:04:05Z"
NOW_MS = 1_767_323_045_000
HANDLE = "djEgb3JkZXJzIGJyb2tlci1hIDE3OTMwMDAwOTAwMDAgT1JERVItNDI="
ENGINES = pytest.mark.parametrize("engine", ["levels", "wheel", "hierarchy", "time-index"])


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def lines(*words: object, code: int = cli.DONE) -> list[dict[str, Any]]:
    result = run(*words)
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def schedule(place: Path, engine: str, key: str, *more: object) -> dict[str, Any]:
    words = ("--topic", "orders", "--body", "cancel 42", "--after", "1m", "--unique-key", key)
    [receipt] = lines("schedule", place, "--engine", engine, *words, *more, "--json", "--now", NOW)
    return receipt


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@ENGINES
def test_who_schedules_once_more_stores_nothing(engine: str, place: Path) -> None:
    schedule(place, engine, "K1", "--once")
    words = ("schedule", place, "--topic", "orders", "--body", "again", "--after", "1m", "--once")
    for now in (NOW, "2026-01-02T03:06:00Z"):
        result = run(*words, "--unique-key", "K1", "--now", now)
        assert result.exit_code == cli.DONE, result.output
        assert (result.stdout, "nothing is stored" in result.stderr) == ("", True)
        run("run", place, "--now", "2026-01-02T03:06:00Z")
    assert [each["body"] for each in lines("read", place, "orders")] == ["cancel 42"]
    assert run(*words, "--now", NOW).exit_code == cli.USAGE


@ENGINES
def test_each_schedule_once_tells_in_json_what_became_of_it(engine: str, place: Path) -> None:
    """Who reads each line as an object needs one of a message that was known too."""
    for key in ("K1", "K2"):
        receipt = schedule(place, engine, key, "--once")
        assert (receipt["unique_key"], "stored" in receipt) == (key, False)
        assert schedule(place, engine, key, "--once") == {"unique_key": key, "stored": False}


@ENGINES
def test_where_the_log_cannot_be_read_nothing_is_told_as_known(engine: str, place: Path) -> None:
    """A bit of the length of one record: the others are found, and what may be hidden is said."""
    first, damaged, last = (schedule(place, engine, key) for key in ("K1", "K2", "K3"))
    [log] = (place / "commitlog").iterdir()
    flip(log, damaged["commit_log_offset"] + HEAD_V4_V4.offset_of("size_bytes") + 2, 7)
    where = f"cannot be read at offset {damaged['commit_log_offset']}"
    for key, whole in (("K1", first), ("K2", None), ("K3", last)):
        traced, state = (run(verb, place, key, "--now", NOW) for verb in ("trace", "state"))
        assert (traced.exit_code, state.exit_code) == (cli.FINDINGS, cli.FINDINGS)
        assert where in traced.stderr
        assert where in state.stderr
        assert state.stdout.split() == ["pending" if whole else "unknown"]
        words = ("schedule", place, "--topic", "orders", "--body", "again", "--after", "1m")
        again = run(*words, "--once", "--unique-key", key, "--now", NOW)
        assert again.exit_code == (cli.DONE if whole else cli.SOURCE_UNREADABLE), again.output
        assert "nothing is stored" in again.stderr
        assert len(lines("trace", place, key, "--now", NOW, code=cli.FINDINGS)) == bool(whole)


@ENGINES
def test_a_message_whose_body_is_damaged_is_known_and_not_stored_again(
    engine: str, place: Path
) -> None:
    receipt = schedule(place, engine, "K1")
    [log] = (place / "commitlog").iterdir()
    flip(log, log.read_bytes()[:4_096].index(b"cancel 42"), 0)
    words = ("schedule", place, "--topic", "orders", "--body", "again", "--after", "1m")
    again = run(*words, "--once", "--unique-key", "K1", "--now", NOW)
    assert again.exit_code == cli.SOURCE_UNREADABLE, again.output
    traced = run("trace", place, "K1", "--now", NOW)
    assert f"cannot be read at offset {receipt['commit_log_offset']:,}" in traced.stderr


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("verb", ["pending", "state", "export"])
def test_what_no_broker_reads_any_more_is_not_passed_over(
    verb: str, is_killed: bool, place: Path
) -> None:
    """A wheel that rested for more than a week: a broker leaps, and `run` delivers. Of what was
    delivered behind the checkpoint of a killed one the log tells.
    """
    for key in ("K1", "K2", "K3"):
        schedule(place, "wheel", key)
    lines("cancel", place, "--key", "K2", "--json", "--now", NOW)
    before = (place / "config" / "timercheck").read_bytes()
    lines("reschedule", place, "--key", "K3", "--after", "1s", "--json", "--now", NOW)
    assert len(lines("run", place, "--now", NOW_MS + 5_000, "--json")) == 1
    if is_killed:
        (place / "abort").touch()
        (place / "config" / "timercheck").write_bytes(before)
    given: dict[str, list[object]] = {"state": ["K1"], "export": [place.with_suffix(".parquet")]}
    if verb == "export" and is_killed:
        given[verb].append("--after-crash")
    words = given.get(verb, [])
    late = NOW_MS + 8 * 86_400_000
    asked = run(verb, place, *words, "--now", late)
    assert asked.exit_code == cli.SOURCE_UNREADABLE, asked.output
    assert "1 message is in slots further back than a broker that starts reads" in asked.stderr
    assert [each["unique_key"] for each in lines("run", place, "--now", late, "--json")] == ["K1"]
    assert run("pending", place, "--now", late).exit_code == cli.DONE


@ENGINES
def test_a_message_is_moved_traced_and_cancelled_by_its_key(engine: str, place: Path) -> None:
    first = schedule(place, engine, "K1")
    schedule(place, engine, "K2")
    moved = ("reschedule", place, "--key", "K1", "--after", "2m", "--json", "--now", NOW)
    [receipt] = lines(*moved)
    assert receipt["promised_ms"] == NOW_MS + 120_000
    assert lines("run", place, "--now", NOW_MS + 60_000, "--json")[0]["unique_key"] == "K2"
    handle = receipt["handle"]
    again = ("reschedule", place, handle, "--at", NOW_MS + 300_000, "--json", "--now", NOW)
    assert lines(*again)[0]["promised_ms"] == NOW_MS + 300_000
    [cancelled] = lines("cancel", place, "--key", "K1", "--json", "--now", NOW)
    assert cancelled["cancellation"] == "cancelled"
    steps = lines("trace", place, "K1", "--now", NOW)
    told = [step["event"] for step in steps if step["event"] != "cancelled"]
    assert told == ["scheduled", "rescheduled", "rescheduled"]
    assert {step["first_offset"] for step in steps} == {first["commit_log_offset"]}
    assert lines("run", place, "--now", NOW_MS + 400_000, "--json") == []
    [_, delivered] = lines("trace", place, "K2", "--full", "--now", NOW)
    assert (delivered["event"], delivered["body"]) == ("delivered", "cancel 42")
    by_id = lines("trace", place, "--id", delivered["offset_message_id"], "--now", NOW)
    assert [step["event"] for step in by_id] == ["scheduled", "delivered"]
    assert "body" not in by_id[0]


def state(place: Path, key: str, *more: object, now: object = NOW) -> str:
    result = run("state", place, key, *more, "--now", now)
    assert result.exit_code == (cli.FINDINGS if result.stdout == "unknown\n" else cli.DONE)
    return result.stdout.strip()


@ENGINES
def test_a_word_says_where_in_its_life_a_message_is(engine: str, place: Path) -> None:
    for key in ("K1", "K2", "K3"):
        schedule(place, engine, key)
    assert [state(place, key) for key in ("K1", "K4")] == ["pending", "unknown"]
    lines("cancel", place, "--key", "K3", "--json", "--now", NOW)
    consume = ("consume", place, "orders", "--group", "billing", "--json", "--now")
    lines(*consume, NOW_MS + 60_000, "--limit", 1)
    assert [state(place, key) for key in ("K1", "K2", "K3")] == [
        "acknowledged", "delivered", "cancelled",
    ]  # fmt: skip
    told = json.loads(state(place, "K1", "--group", "billing", "--json"))
    assert told == {"unique_key": "K1", "state": "acknowledged"}
    lines(*consume, NOW_MS + 60_000, "--exec", "false", code=cli.FINDINGS)
    assert state(place, "K2") == "pending"
    known = run("state", place, "K2", "--group", "biling", "--now", NOW)
    assert (known.exit_code, "there are billing" in known.stderr) == (cli.USAGE, True)


@ENGINES
def test_a_state_is_told_beside_a_process_that_has_the_store(engine: str, place: Path) -> None:
    clock = ManualClock(NOW_MS)
    with open_store(place, engine=cast(EngineName, engine), clock=clock) as store:
        for key in ("K1", "K2", "K3"):
            store.schedule(Message("orders", b"x", unique_key=key), AfterMs(0))
        store.schedule(Message("orders", b"x", unique_key="K4"), AfterMs(60_000))
        clock.tick(1_000)
        store.advance(clock.now_ms())
        group = consumer_group(store, "billing")
        first, second, _third = group.receive("orders")
        group.ack(first)
        group.reject(second)
        store.advance(clock.now_ms() + 1_000)
        told = [message_state(store, key).value for key in ("K1", "K2", "K3", "K4")]
        assert told == ["acknowledged", "dead", "in flight", "pending"]
        told[2] = "delivered"
        assert [state(place, key) for key in ("K1", "K2", "K3", "K4")] == told


def test_what_is_not_there(place: Path) -> None:
    schedule(place, "wheel", "K1")
    for verb, more in (("cancel", ()), ("reschedule", ("--after", "1m"))):
        result = run(verb, place, "--key", "NEVER", *more, "--now", NOW)
        assert result.exit_code == cli.FINDINGS
        assert "no pending message has the unique key NEVER" in result.stderr
    result = run("trace", place, "NEVER")
    assert (result.exit_code, result.stdout) == (cli.FINDINGS, "")
    assert "no record of the log has the unique key NEVER" in result.stderr


def test_what_is_delivered_is_not_moved(place: Path) -> None:
    receipt = schedule(place, "wheel", "K1")
    lines("run", place, "--now", NOW_MS + 60_000, "--json")
    result = run("reschedule", place, receipt["handle"], "--after", "1m", "--now", NOW)
    assert result.exit_code == cli.FINDINGS
    assert result.stdout.startswith("already delivered: orders K1")


def test_several_messages_of_a_key_are_not_moved(place: Path) -> None:
    for more in ((), ("--property", "a=b")):
        schedule(place, "levels", "K1", *more)
    result = run("reschedule", place, "--key", "K1", "--after", "1m", "--now", NOW)
    assert result.exit_code == cli.USAGE
    assert "2 pending messages of orders share the unique key K1" in result.stderr
    assert len(lines("cancel", place, "--key", "K1", "--json", "--now", NOW)) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "PLACE"),
        ("trace", "PLACE", "K1", "--id", "7F00000100002A9F0000000000000000"),
        ("cancel", "PLACE"),
        ("cancel", "PLACE", "--key", "K1", HANDLE),
        ("reschedule", "PLACE", "--after", "1m"),
        ("reschedule", "PLACE", "--key", "K1"),
    ],
)  # fmt: skip
def test_one_way_to_name_a_message(place: Path, words: tuple[str, ...]) -> None:
    schedule(place, "wheel", "K1")
    result = run(*(str(place) if word == "PLACE" else word for word in words))
    assert result.exit_code == cli.USAGE
    assert "give" in result.stderr


def test_a_text_that_is_no_offset_message_id_is_a_usage_error(place: Path) -> None:
    schedule(place, "wheel", "K1")
    result = run("trace", place, "--id", "00")
    assert result.exit_code == cli.USAGE
    assert "not an offset message id" in result.stderr
