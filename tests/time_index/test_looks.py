# SPDX-License-Identifier: Apache-2.0
"""Verbs that only look show a time index; a conversion does not leave it behind unawares."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import cli
from message_store import AfterMs, ManualClock, Message, MessageBatch
from tests.faults.engines import open_time_index

NOW_MS = 1_767_323_045_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """40 messages, a second apart; five were delivered and one taken back."""
    path, clock = tmp_path / "store", ManualClock(NOW_MS)
    with open_time_index(path, clock) as opened:
        messages = [Message("orders", b"x", unique_key=f"K{number}") for number in range(40)]
        dues_ms = NOW_MS + 1_000 * np.arange(1, 41)
        receipts = opened.schedule_batch(MessageBatch.of(messages), dues_ms)
        opened.cancel(receipts.receipt(20))
        clock.tick(5_000)
        opened.advance(clock.now_ms())
        opened.schedule(Message("late", b"y", unique_key="LATE"), AfterMs(60_000))
    return path


def done(*words: object, code: int = cli.DONE) -> str:
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout


def test_pending_lists_it_in_order_of_due_time(store: Path) -> None:
    said = done("pending", store, "--json", "--now", NOW_MS).splitlines()
    found = [json.loads(line) for line in said]
    keys = [f"K{number}" for number in range(5, 40) if number != 20]
    assert [each["unique_key"] for each in found] == [*keys, "LATE"]
    assert [each["level"] for each in found] == [None] * len(found)
    assert found[0]["due_ms"] == NOW_MS + 6_000
    late = done("pending", store, "--topic", "late", "--json", "--now", NOW_MS)
    assert json.loads(late)["due_ms"] == NOW_MS + 65_000


def test_an_inspection_and_a_check_count_it(store: Path) -> None:
    said = done("inspect", store, "--now", NOW_MS + 6_500)
    assert "delaywheel-time-index, stopped cleanly (there is a time index, of which" in said
    assert "time index: 35 pending, 1 overdue, due from 2026-01-02T03:04:11Z" in said
    told = json.loads(done("inspect", store, "--json", "--now", NOW_MS + 6_500))
    assert (told["pending"], told["overdue"], told["time_index"]["pending"]) == (35, 1, 35)
    assert "35 messages wait there" in done("check", store, "--now", NOW_MS)


def test_an_export_has_it(store: Path, tmp_path: Path) -> None:
    done("export", store, tmp_path / "out.parquet", "--now", NOW_MS)
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert len(table["unique_key"]) == 35
    assert table["due_ms"][0] == NOW_MS + 6_000
    assert set(table["problem"]) == {None}


def test_a_conversion_of_levels_refuses_to_leave_it_behind(store: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli.main, ["convert", str(store), str(tmp_path / "target"), "--in-process"]
    )
    assert result.exit_code not in (cli.DONE, 1), result.output
    assert "35 messages wait in its time index and would be left behind" in result.output


def test_another_engine_names_it_and_refuses(store: Path) -> None:
    for engine in ("levels", "wheel", "hierarchy"):
        result = CliRunner().invoke(cli.main, ["run", str(store), "--engine", engine])
        assert result.exit_code == cli.USAGE
        assert "is a store of a time index; nothing was ever put into its" in result.output
