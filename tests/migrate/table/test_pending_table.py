# SPDX-License-Identifier: Apache-2.0
"""What waits as a table: every message a row, as the scalar code reads it, also from a damaged log;
and as a Parquet file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from message_store.base.errors import OptionsError, SourceError, TargetError, UncleanStoreError
from message_store.columns.byte_column import ByteColumn
from message_store.files.store_root import StoreRoot
from message_store.format.message_rules import RESERVED_PROPERTIES
from message_store.format.properties import decode_properties
from message_store.interface.delay_store import Pending
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from migrate.table.export import export_parquet
from migrate.table.pending_batches import pending_batches, user_properties
from migrate.table.pending_table import (
    LEVELS,
    WHEEL,
    Condition,
    PendingRows,
    TableOptions,
    pending_rows,
)
from tests.independent.level_messages import LevelMessage, retry_message
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.real_stores import (
    LEVELS_49_CLEAN,
    LEVELS_49_CRASH,
    LEVELS_55_CLEAN,
    WHEEL_55_CLEAN,
    unpack,
)
from tests.migrate.conversions import build_and_convert

NOW_MS = T0 + 20_000
ITEMS = [
    LevelMessage(level=18, topic="Orders", queue_id=3, keys="k1 k2", unique_key="U1"),
    LevelMessage(level=3, tags=None, unique_key=None),
    retry_message(level=4, unique_key="U1"),
]


def table(
    path: Path, kind: str, options: TableOptions, *asked: Condition, keep: bool = False
) -> list[dict[str, Any]]:
    rows = pending_rows(path, kind, options, asked)
    batches = list(
        pending_batches(StoreRoot(path), kind, rows, options, asked, keep_unreadable=keep)
    )
    return pa.Table.from_batches(batches, options.schema).to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_level_store(tmp_path / "store", ITEMS)
    return tmp_path / "store"


# --- rows are messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [LEVELS_49_CLEAN, LEVELS_49_CRASH, LEVELS_55_CLEAN, WHEEL_55_CLEAN]
)
def test_the_rows_are_what_pending_lists(name: str, tmp_path: Path) -> None:
    real = unpack(name, tmp_path / "store")
    options = TableOptions(now_ms=real.stopped_ms, after_crash=True)
    listed = list(pending_messages(real.root, now_ms=real.stopped_ms))
    for kind in (LEVELS, WHEEL):
        wanted = [each for each in listed if (each.level is None) == (kind == WHEEL)]
        wanted.sort(key=lambda each: each.commit_log_offset)
        found = table(real.root, kind, options)
        assert len(found) == len(wanted)
        for row, message in zip(found, wanted, strict=True):
            assert isinstance(message, Pending)
            assert row["problem"] is None
            assert tuple(row["keys"] or ()) == message.keys
            names = ("unique_key", "topic", "queue_id", "tags", "level", "due_ms", "size_bytes")
            for each in (*names, "commit_log_offset"):
                assert row[each] == getattr(message, each), each


@pytest.mark.parametrize("engine", [WHEEL, "hierarchy"])
def test_what_was_converted_is_not_said_to_be_due_earlier_than_it_comes(
    tmp_path: Path, engine: str
) -> None:
    items = [LevelMessage(level=number % 3 + 16, unique_key=f"U{number}") for number in range(9)]
    converted = build_and_convert(tmp_path, items, to=engine)
    store, now_ms = converted.target, converted.report.now_ms

    def due(path: Path) -> dict[str | None, int]:
        listed = pending_messages(path, now_ms=now_ms)
        return {each.unique_key: each.due_ms for each in listed if isinstance(each, Pending)}

    rows = table(store, WHEEL, TableOptions(now_ms=now_ms))
    told, asked = due(store), due(converted.options.source)
    assert {row["unique_key"]: row["due_ms"] for row in rows} == told
    assert all(asked[key] <= told[key] < asked[key] + 1000 for key in asked)


def test_a_record_that_cannot_be_read_is_a_row_that_says_why(store: Path) -> None:
    options = TableOptions(now_ms=NOW_MS, include_body=True)
    whole = table(store, LEVELS, options)
    [log] = (store / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    bad = whole[1]["commit_log_offset"]
    data[bad + 4] ^= 0xFF
    log.write_bytes(data)
    found = table(store, LEVELS, options)
    assert [found[0], found[2]] == [whole[0], whole[2]]
    place = ("level", "due_ms", "size_bytes", "commit_log_offset")
    assert {name for name, value in found[1].items() if value is not None} == {*place, "problem"}
    assert [found[1][name] for name in place] == [whole[1][name] for name in place]
    [listed] = [
        each for each in pending_messages(store, now_ms=NOW_MS) if isinstance(each, BadRecord)
    ]
    assert listed.reason == found[1]["problem"]


def test_a_length_that_is_not_the_queues_is_a_problem(store: Path) -> None:
    options = TableOptions(now_ms=NOW_MS)
    [log] = (store / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    first = table(store, LEVELS, options)[0]
    data[first["commit_log_offset"] + 3] ^= 1
    log.write_bytes(data)
    assert "where the queue says" in table(store, LEVELS, options)[0]["problem"]


def test_text_that_is_not_unicode_is_replaced(tmp_path: Path) -> None:
    message = LevelMessage(level=3, tags="caf\udce9")
    build_level_store(tmp_path / "store", [message])
    [row] = table(tmp_path / "store", LEVELS, TableOptions(now_ms=NOW_MS))
    assert row["tags"] == "caf\ufffd"


@pytest.mark.parametrize("queue_id", [2**31, 2**32 + 1, 10**17])
def test_a_queue_id_that_is_no_int_is_a_problem(queue_id: int, tmp_path: Path) -> None:
    """Java parses none, and a conversion refuses it."""
    pairs = [("REAL_TOPIC", "orders"), ("DELAY", "5"), ("REAL_QID", str(queue_id))]
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    build_level_store(tmp_path / "store", [LevelMessage(level=5, raw_properties=text)])
    [row] = table(tmp_path / "store", LEVELS, TableOptions(now_ms=NOW_MS), keep=True)
    assert (row["queue_id"], row["problem"]) == (None, "its real queue id is no number")


TEXTS = st.lists(
    st.sampled_from([b"a\x01b", b"a\x01c", b"TAGS\x01x", b"\x01x", b"y\x01", b"", b"noise"])
    | st.tuples(st.text(max_size=3), st.text(max_size=3)).map(lambda p: "\x01".join(p).encode()),
    max_size=6,
).map(b"\x02".join)


@given(st.lists(TEXTS, max_size=8))
def test_maps_of_properties_are_what_a_broker_reads(texts: list[bytes]) -> None:
    found = user_properties(ByteColumn.of(texts)).to_pylist()
    wanted = [
        {
            name: value
            for name, value in decode_properties(text).items()
            if name not in RESERVED_PROPERTIES
        }
        for text in texts
    ]
    assert [dict(entries) for entries in found] == wanted
    assert [len(entries) for entries in found] == [len(each) for each in wanted]


@given(st.lists(st.tuples(*[st.integers(0, 2**62)] * 2, st.integers(0, 2**31 - 1)), max_size=30))
def test_rows_are_packed_without_loss(rows: list[tuple[int, int, int]]) -> None:
    offsets, due, sizes = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    levels = np.arange(len(rows), dtype=np.int16)
    before = PendingRows(levels, offsets, sizes.astype(np.int32), due, 500)
    after = PendingRows.unpacked(before.packed())
    for name in ("level", "commit_log_offset", "size_bytes", "due_ms"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist()
    assert after.precision_ms == 500
    assert sum(len(part) for part in before.ranges()) == len(before)


def test_ranges_are_cut_by_bytes_and_by_rows() -> None:
    count = 200_000
    sizes = np.full(count, 100, np.int32)
    sizes[:10] = 40 << 20
    rows = PendingRows(np.ones(count, np.int16), np.arange(count), sizes, np.arange(count))
    lengths = [len(part) for part in rows.ranges()]
    assert sum(lengths) == count
    assert lengths[:9] == [1] * 9
    assert max(lengths) == 65_536


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "levels"),
    [
        ([Condition("topic", "==", "Orders")], [18]),
        ([Condition("topic", "in", ("Orders", "%RETRY%group_a", None))], [18, 4]),
        ([Condition("level", "<", 10)], [3, 4]),
        ([Condition("level", "in", (3, 4)), Condition("unique_key", "is not null")], [4]),
        ([Condition("due_ms", ">=", T0 + 30_000)], [18, 4]),
        ([Condition("due_ms", "<=", T0 + 10_000)], [3]),
        ([Condition("tags", "==", "none")], []),
    ],
)
def test_conditions_choose_as_sql_would(
    asked: Sequence[Condition], levels: list[int], store: Path
) -> None:
    found = table(store, LEVELS, TableOptions(now_ms=NOW_MS), *asked)
    assert [row["level"] for row in found] == levels


@pytest.mark.parametrize(("keep", "rows"), [(False, 0), (True, 1)])
def test_what_cannot_be_read_meets_a_condition_only_when_told_so(
    keep: bool, rows: int, store: Path
) -> None:
    [log] = (store / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[table(store, LEVELS, TableOptions(now_ms=NOW_MS))[0]["commit_log_offset"] + 4] ^= 0xFF
    log.write_bytes(data)
    asked = Condition("topic", "==", "nobody")
    assert len(table(store, LEVELS, TableOptions(now_ms=NOW_MS), asked, keep=keep)) == rows


# --- export ---------------------------------------------------------------------------------------


def test_an_export_holds_what_waits(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    options = TableOptions(now_ms=NOW_MS, include_body=True)
    report = export_parquet(store, out, options=options)
    assert (report.exported, report.levels, report.wheel, report.unreadable) == (3, 3, 0, 0)
    assert pq.read_table(out).to_pylist() == table(store, LEVELS, options)
    assert report.bytes_written == out.stat().st_size


def test_levels_and_wheel_of_one_store(tmp_path: Path) -> None:
    real = unpack(LEVELS_55_CLEAN, tmp_path / "store")
    options = TableOptions(now_ms=real.stopped_ms)
    made = {}
    for what in ("both", "levels", "wheel"):
        out = tmp_path / f"{what}.parquet"
        made[what] = export_parquet(real.root, out, options=options, what=what)
        assert pq.read_table(out).num_rows == made[what].exported
    assert made["both"].exported == made["levels"].exported + made["wheel"].exported
    assert made["levels"].exported > 0


def test_a_store_whose_name_is_not_utf8_is_exported(store: Path, tmp_path: Path) -> None:
    odd = store.rename(tmp_path / "od\udcff")
    export_parquet(odd, tmp_path / "out.parquet", options=TableOptions(now_ms=NOW_MS))
    facts = pq.read_schema(tmp_path / "out.parquet").metadata
    assert facts[b"delaywheel.store"].endswith(rb"od\udcff")


def test_an_export_replaces_no_file_and_leaves_no_half_one(store: Path, tmp_path: Path) -> None:
    options = TableOptions(now_ms=NOW_MS)
    (tmp_path / "there.parquet").write_text("mine")
    with pytest.raises(TargetError, match="is already there"):
        export_parquet(store, tmp_path / "there.parquet", options=options)
    with pytest.raises(TargetError, match="no such directory"):
        export_parquet(store, tmp_path / "missing" / "out.parquet", options=options)
    with pytest.raises(TargetError, match=r"lies in the store .*; choose a place outside"):
        export_parquet(store, store / "out.parquet", options=options)
    (store / "abort").touch()
    with pytest.raises(UncleanStoreError, match=r"use --after-crash \(afterCrash of"):
        export_parquet(store, tmp_path / "out.parquet", options=options)
    with pytest.raises(SourceError):
        export_parquet(tmp_path / "nothing", tmp_path / "out.parquet", options=options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "there.parquet"]
    assert (tmp_path / "there.parquet").read_text() == "mine"


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out"])
def test_a_file_of_another_format_is_refused(name: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"its name ends in \.parquet"):
        export_parquet(store, tmp_path / name, options=TableOptions(now_ms=NOW_MS))
    refused = run_export(store, tmp_path / name)
    assert (refused.exit_code, (tmp_path / name).exists()) == (2, False)
    assert run_export(store, tmp_path / "out.PARQUET").exit_code == 0


def run_export(*words: object) -> Any:
    now = ["--now", str(NOW_MS), "--quiet"]
    return CliRunner().invoke(main, ["export", *map(str, words), *now])


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ([], 3),
        (["--topic", "Orders"], 1),
        (["--level", 3, "--level", 4], 2),
        (["--due-before", T0 + 30_000], 1),
        (["--due-after", T0 + 30_000], 2),
        (["--of", "wheel"], 0),
    ],
)
def test_the_command_exports_what_is_asked_for(
    flags: list[object], count: int, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    done = run_export(store, out, "--include-body", *flags)
    assert done.exit_code == 0, done.output
    found = pq.read_table(out)
    assert found.num_rows == count
    assert "body" in found.schema.names
    assert run_export(store, out).exit_code == 4


def test_the_command_tells_of_what_it_could_not_read(store: Path, tmp_path: Path) -> None:
    [log] = (store / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[table(store, LEVELS, TableOptions(now_ms=NOW_MS))[0]["commit_log_offset"] + 4] ^= 0xFF
    log.write_bytes(data)
    done = run_export(store, tmp_path / "out.parquet", "--topic", "Orders")
    assert done.exit_code == 1
    assert "see the column problem" in done.output
    assert pq.read_table(tmp_path / "out.parquet").column("problem").null_count < 2
