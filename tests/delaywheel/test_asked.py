# SPDX-License-Identifier: Apache-2.0
"""The shell: messages whose properties say when, limits, messages of other engines, and what small
refusals and waits say.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import cli
from delaywheel.terminal import verb
from legacy_levels import LevelStore
from message_store import AfterMs, ManualClock, Message
from message_store.base.errors import SourceError
from message_store.files.store_root import StoreRoot
from message_store.kernels import cache
from tests.delaywheel.test_engines import ENGINES, NOW, NOW_MS, done, lines, refused, run, schedule
from tests.independent.level_messages import LevelMessage
from tests.independent.level_store_builder import T0, build_level_store
from timer_wheel import WheelStore

DAY_MS = 86_400_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where there is no store yet."""
    return tmp_path / "store"


# --- what a message's own properties ask for ------------------------------------------------------


@ENGINES
@pytest.mark.parametrize(
    ("words", "delay_ms"),
    [
        (["TIMER_DELAY_SEC=60"], 60_000),
        (["TIMER_DELAY_MS=5000", "mine=own"], 5_000),
        ([f"TIMER_DELIVER_MS={NOW_MS + 30_000}"], 30_000),
        (["DELAY=3", "TIMER_DELAY_SEC=60"], 10_000),
    ],
    ids=str,
)
def test_a_property_says_when_in_place_of_a_flag(
    engine: str, words: list[str], delay_ms: int, place: Path
) -> None:
    flags = [flag for word in words for flag in ("--property", word)]
    assert schedule(place, *flags, engine=engine)["promised_ms"] == NOW_MS + delay_ms
    assert lines("run", place, "--now", NOW_MS + delay_ms - 1) == []
    [delivered] = lines("run", place, "--now", NOW_MS + delay_ms)
    assert delivered["properties"].get("mine") == ("own" if "mine=own" in words else None)


@ENGINES
def test_a_file_may_mix_messages_with_a_time_and_messages_that_ask_for_one(
    engine: str, place: Path
) -> None:
    asks = {"topic": "a", "body": "asks", "properties": {"TIMER_DELAY_SEC": "60", "mine": "own"}}
    is_told = {"topic": "a", "body": "told", "after": "5s"}
    words = ("schedule", place, "--engine", engine, "--now", NOW, "--lines", "-")
    both = lines(*words, stdin=f"{json.dumps(asks)}\n{json.dumps(is_told)}\n")
    assert [each["promised_ms"] - NOW_MS for each in both] == [60_000, 5_000]
    alone = lines(*words, stdin=f"{json.dumps(asks)}\n" * 2)
    assert [each["promised_ms"] - NOW_MS for each in alone] == [60_000] * 2
    delivered = lines("run", place, "--now", NOW_MS + 60_000)
    assert [each["body"] for each in delivered] == ["told", "asks", "asks", "asks"]
    assert {each["properties"].get("mine") for each in delivered[1:]} == {"own"}
    bad = {**asks, "properties": {"TIMER_DELAY_SEC": "soon"}}
    for stdin in (f"{json.dumps(is_told)}\n\n{json.dumps(bad)}\n", f"\n\n{json.dumps(bad)}\n"):
        result = run(*words, stdin=stdin)
        refused(result, cli.USAGE, "line 3: TIMER_DELAY_SEC is no whole number")


@ENGINES
def test_start_deliver_time_counts_where_that_is_asked_for(engine: str, place: Path) -> None:
    asks = ("--property", f"__STARTDELIVERTIME={NOW_MS + 60_000}")
    words = ("--topic", "a", "--body", "x", "--engine", engine, "--now", NOW)
    refused(run("schedule", place, *words, *asks), cli.USAGE, "give exactly one of --at")
    assert not place.exists()
    receipt = schedule(place, *asks, "--start-deliver-time", engine=engine)
    assert receipt["promised_ms"] == NOW_MS + 60_000


def test_a_property_and_a_flag_that_both_say_when_are_refused(place: Path) -> None:
    words = ("--topic", "a", "--body", "x", "--engine", "wheel", "--after", "5s")
    result = run("schedule", place, *words, "--property", "TIMER_DELAY_SEC=60")
    refused(result, cli.USAGE, "TIMER_DELAY_SEC")
    assert not place.exists()


# --- limits ---------------------------------------------------------------------------------------


@ENGINES
def test_a_delay_beyond_the_limit_is_refused_or_delivered_at_once(engine: str, place: Path) -> None:
    """The manual of 5.0: no more than 24 hours, and what is asked for later comes at once."""
    words = ("--topic", "a", "--body", "x", "--engine", engine, "--now", NOW, "--after", "61s")
    limit = ("--max-delay", "60s")
    result = run("schedule", place, *words, *limit)
    refused(result, cli.USAGE, "61s", "beyond the limit of 1m", "--max-delay")
    assert not place.exists()
    receipt = schedule(place, *limit, "--beyond-max", "deliver", "--after", "61s", engine=engine)
    assert receipt["promised_ms"] == NOW_MS
    assert len(lines("run", place, "--now", NOW)) == 1


def test_a_wheel_takes_40_days_where_that_is_asked_for(place: Path) -> None:
    receipt = schedule(place, "--after", "40d", "--max-delay", "40d")
    assert receipt["promised_ms"] == NOW_MS + 40 * DAY_MS


# --- messages of another engine -------------------------------------------------------------------


def test_messages_of_another_engine_are_counted_and_the_verb_is_named(place: Path) -> None:
    clock = ManualClock(NOW_MS)
    with WheelStore.open(place, clock=clock) as wheel:
        wheel.schedule(Message("orders", b"W"), AfterMs(60_000))
    with pytest.warns(UserWarning, match="a wheel"):
        levels = LevelStore.open(place, clock=clock)
    with levels:
        for _ in range(3):
            levels.schedule(Message("orders", b"L"), AfterMs(1_000))
    words = ("run", place, "--now", NOW, "--engine")
    said = run(*words, "wheel").stderr
    assert f"{place}: 3 messages wait in the levels" in said
    assert "`delaywheel run --engine levels` delivers them" in said
    assert "1 message waits in a wheel" in run(*words, "levels").stderr
    done("run", place, "--engine", "levels", "--now", NOW_MS + 1_000)
    assert "wait in" not in run(*words, "wheel").stderr


# --- what small refusals say ----------------------------------------------------------------------


def test_a_reason_that_several_stores_share_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_level_store(Path("n0"), [LevelMessage(level=3, body=b"x")])
    for name in ("n1", "n2"):
        build_level_store(Path(name), [LevelMessage(level=3, body=b"x")])
    result = run("convert", "n0", "n1", "n2", "OUT", "--now", T0 + 500, "--in-process")
    assert result.exit_code == cli.USAGE, result.output
    assert result.stderr.count("hold the data of one broker") == 1
    assert "n0, n1, n2: " in result.stderr


@pytest.mark.parametrize("below", [".", "store"])
def test_members_in_a_directory_that_is_no_store_are_named(below: str, tmp_path: Path) -> None:
    members = [tmp_path / "group" / name / below for name in ("n0", "n1")]
    for member in members:
        (member / "dledger-n0" / "data").mkdir(parents=True)
    with pytest.raises(SourceError, match="not a store directory") as raised:
        StoreRoot(tmp_path / "group").require_readable()
    listed = ", ".join(str(Path(member)) for member in members)
    assert str(raised.value).endswith(
        f"; members of a DLedger group are in it, give one of them: {listed}"
    )
    result = run("inspect", tmp_path / "group")
    refused(result, cli.SOURCE_UNREADABLE, str(members[0]))


def test_stores_in_a_directory_that_is_no_store_are_named(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        (tmp_path / name / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(SourceError) as raised:
        StoreRoot(tmp_path).require_readable()
    assert str(raised.value).endswith(
        f"give one of them: {tmp_path}/broker-a/store, {tmp_path}/broker-b/store"
    )


@ENGINES
def test_each_handle_that_is_unknown_is_named(engine: str, place: Path) -> None:
    known = schedule(place, "--after", "30s", "--unique-key", "K1", engine=engine)["handle"]
    other = schedule(place, "--after", "30s", "--unique-key", "K2", engine=engine)["handle"]
    assert run("cancel", place, other, "--now", NOW).exit_code == cli.DONE
    absent = [
        "djEgb3JkZXJzIGJyb2tlci1hIDE3OTMwMDAwOTAwMDAgT1JERVItNDI=",
        "djEgYmlsbHMgYnJva2VyLWEgMTc5MzAwMDA5MDAwMCBCSUxMLTc=",
    ]
    result = run("cancel", place, absent[0], known, absent[1], "--now", NOW)
    assert result.exit_code == cli.FINDINGS
    assert result.stdout.splitlines()[0] == "never existed: orders ORDER-42"
    assert result.stdout.splitlines()[1].startswith("cancelled: orders K1")
    assert result.stdout.splitlines()[2] == "never existed: bills BILL-7"
    refused(run("cancel", place, known, "nonsense"), cli.USAGE, "'nonsense'")


# --- what is said while kernels are compiled ------------------------------------------------------


def test_only_kernels_that_are_compiled_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SimpleNamespace(seconds=verb.PATIENCE_S / 2, is_kept=True)
    monkeypatch.setattr(cache, "COMPILED", compiled)
    assert verb._compiling() is None
    compiled.seconds = verb.PATIENCE_S * 2
    assert "the first run" in str(verb._compiling())
    compiled.is_kept = False
    assert "Set NUMBA_CACHE_DIR" in str(verb._compiling())
    monkeypatch.delitem(sys.modules, cache.__name__)
    assert verb._compiling() is None
