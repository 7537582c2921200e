# SPDX-License-Identifier: Apache-2.0
"""Workloads: what is made up, what is recorded, and that all processes see the same messages."""

from pathlib import Path

import numpy as np
import pytest

from compare.running.work_files import read_workload, write_workload
from compare.workloads.made_up import MADE_UP, START_MS, Recipe, make_workload
from compare.workloads.recorded import backlog, trace
from compare.workloads.workload import NUMBER_BYTES, QUEUES, MessageMaker, Workload
from message_store.base.errors import BadFieldError, SourceError
from message_store.columns.byte_column import int64s
from message_store.format.delay_levels import DelayLevels
from tests.compare.races import small


def same(one: Workload, other: Workload) -> bool:
    columns = ("arrival_ms", "due_ms", "level", "topic", "body_bytes")
    return one.facts() == other.facts() and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )


@pytest.mark.parametrize("name", MADE_UP)
def test_the_same_seed_makes_the_same_messages(name: str) -> None:
    assert same(small(name), small(name))
    assert not same(small(name), small(name, seed=2))


@pytest.mark.parametrize("name", MADE_UP)
def test_messages_come_in_order_and_are_wanted_after_they_arrive(name: str) -> None:
    made = small(name, rate_per_second=1_000.0)
    assert (np.diff(made.arrival_ms) >= 0).all()
    assert (made.due_ms > made.arrival_ms).all()
    assert made.arrival_ms[-1] - made.arrival_ms[0] == 199


def test_levels_asks_for_the_18_delays() -> None:
    made = small("levels", messages=2_000)
    assert set(made.level.tolist()) == set(range(1, 19))
    delays = np.array(DelayLevels.parse().delays_ms)
    assert (made.due_ms - made.arrival_ms == delays[made.level - 1]).all()


def test_a_burst_is_due_in_one_second_after_all_have_arrived() -> None:
    made = small("burst", rate_per_second=1.0)
    assert np.ptp(made.due_ms) < 1_000
    assert made.due_ms.min() >= made.arrival_ms.max()


def test_delays_stay_in_the_range_that_was_asked_for() -> None:
    made = small("uniform", delay_min_ms=5_000, delay_max_ms=6_000)
    delays = made.due_ms - made.arrival_ms
    assert (delays.min() >= 5_000, delays.max() <= 6_000) == (True, True)


@pytest.mark.parametrize(
    "wrong", [{"body_bytes": NUMBER_BYTES - 1}, {"delay_min_ms": 2, "delay_max_ms": 1}]
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadFieldError):
        make_workload("uniform", Recipe(**wrong))


def test_a_body_begins_with_its_number_and_is_the_same_in_whatever_batch() -> None:
    made = small("uniform", topics=3)
    maker = MessageMaker(made)
    whole, alone = maker.batch(0, 200), maker.batch(137, 138)
    assert [int.from_bytes(body[:NUMBER_BYTES], "big") for body in whole.body] == list(range(200))
    assert (whole.body[137], whole.topic[137]) == (alone.body[0], alone.topic[0])
    assert set(whole.queue_id.tolist()) == set(range(QUEUES))
    assert {len(body) for body in whole.body} == {64}
    assert maker.singly(5, 9) == [whole.message(row) for row in range(5, 9)]


def test_bodies_of_different_lengths_are_those_of_equal_ones_cut_short() -> None:
    made = small("uniform", messages=4)
    lengths = [64, 8, 30, 64]
    mixed = Workload(
        name="mixed",
        start_ms=made.start_ms,
        arrival_ms=made.arrival_ms,
        due_ms=made.due_ms,
        level=made.level,
        topic=made.topic,
        body_bytes=lengths,
        topics=made.topics,
        seed=made.seed,
    )
    bodies = list(MessageMaker(made).batch(0, 4).body)
    assert list(MessageMaker(mixed).batch(0, 4).body) == [
        body[:length] for body, length in zip(bodies, lengths, strict=True)
    ]


def test_another_process_reads_the_same_workload(tmp_path: Path) -> None:
    made = small("tdmq")
    write_workload(tmp_path / "workload.npz", made)
    assert same(read_workload(tmp_path / "workload.npz"), made)
    with np.load(tmp_path / "workload.npz") as file:
        assert np.array_equal(file["block"], made.block())


def test_a_workload_can_begin_at_another_time() -> None:
    made = small("uniform")
    later = made.starting_at(made.start_ms + 500)
    assert (later.due_ms - made.due_ms == 500).all()
    assert (later.arrival_ms - made.arrival_ms == 500).all()


# --- recorded -------------------------------------------------------------------------------------


def test_a_trace_takes_every_form_of_time_and_its_columns_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "due_ms,topic,arrival_ms,body_bytes\n"
        f"{START_MS + 9_000},orders,{START_MS + 2_000},\n"
        "5000,a/b,1000,100\n"
        "# a remark\n"
        "2026-10-26T07:33:30Z,orders,2026-10-26T07:33:20,\n"
    )
    found = trace(path, body_bytes=50)
    assert (found.arrival_ms - START_MS).tolist() == [0, 1_000, 2_000]
    assert (found.due_ms - START_MS).tolist() == [10_000, 5_000, 9_000]
    assert found.body_bytes.tolist() == [50, 100, 50]
    assert found.topics == ("orders", "race-1")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_lines_of_a_trace_end_as_on_any_system(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(end.join([b"arrival,due", b"0,5000", b"10,20", b""]))
    assert (trace(path, body_bytes=8).due_ms - START_MS).tolist() == [5_000, 20]


def test_a_trace_needs_no_header_and_can_be_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("0,5000\n10,20\n20,30\n")
    assert len(trace(path, body_bytes=8)) == 3
    assert len(trace(path, body_bytes=8, most=2)) == 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"0,5000\n7,soon\n", "line 2: 'soon' is neither ISO 8601 nor milliseconds"),
        (b"0\n", "line 1: '' is neither"),
        (b"0,1,t,7\n", "line 1: a body has 8 bytes to 4 MiB, not 7"),
        (b"0,1,t,many\n", "line 1: a body has 8 bytes to 4 MiB, not many"),
        (b'0,1,"' + bytes(200_000), "cannot be read as CSV: field larger than field limit"),
        (b"0,5000\n2026-01-01T00:00:00Z,5000\n", "line 2: '5000' counts from the beginning"),
        (b"7,2026-01-01T00:00:00Z\n", "line 1: '7' counts from the beginning"),
        (b"1793000000000,5000\n", "line 1: '5000' counts from the beginning, and '1793000000000'"),
        (b"0001-01-01,2026-01-01\n", "line 1: '0001-01-01' is not within the years 1973 to 2286"),
        (b"1793000000000,999999999999999\n", "line 1: '999999999999999' is not within"),
        (b"1980-01-01,2026-01-01\n", "line 1: due more than 3,650 days from its arrival"),
        (b"1980-01-01,1980-01-02\n2026-01-01,2026-01-02\n", "arrivals lie more than 3,650 days"),
        (b"arrival,due\n", "holds no messages"),
        (b"\xff\xfe0,1\n", "no text: byte 0 is not UTF-8"),
    ],
)
def test_a_trace_that_cannot_be_understood_names_the_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=complaint):
        trace(path, body_bytes=8)


def test_a_backlog_arrives_when_it_was_stored(tmp_path: Path) -> None:
    found, keys = backlog(
        source="store",
        store_ms=int64s([5_000, 1_000]),
        due_ms=int64s([6_000, 61_000]),
        level=int64s([1, 5]),
        topics=["b", "%RETRY%a"],
        body_bytes=int64s([3, 30]),
        unique_keys=["later", None],
    )
    assert keys == ("", "later")
    assert found.arrival_ms.tolist() == [1_000, 5_000]
    assert found.level.tolist() == [5, 1]
    assert [found.topics[index] for index in found.topic] == ["race-1", "b"]
    assert found.body_bytes.tolist() == [30, NUMBER_BYTES]


@pytest.mark.parametrize(
    ("levels", "delays_ms", "table"),
    [
        ([1, 2, 3], [1_000, 5_000, 10_000], None),
        ([0, 0], [1_234, 77_000], None),
        ([1, 1], [0, 1_000], None),
        ([1, 2, 3], [3_000, 7_000, 120_000], "3s 7s 2m 30s"),
        ([20], [10_000_000_000], None),
    ],
)
def test_the_levels_of_a_backlog_are_those_that_its_messages_were_put_with(
    levels: list[int], delays_ms: list[int], table: str | None
) -> None:
    workload, _ = backlog(
        source="here",
        store_ms=int64s([10**12] * len(levels)),
        due_ms=int64s([10**12 + delay for delay in delays_ms]),
        level=int64s(levels),
        topics=["orders"] * len(levels),
        body_bytes=int64s([9] * len(levels)),
    )
    found = workload.level_table()
    if levels == [20]:
        assert found is not None
        assert DelayLevels.parse(found).delay_ms(20) == delays_ms[0]
    else:
        assert (found or "").startswith(table or "")
        assert (found is None) == (table is None)


def test_a_store_in_which_nothing_waits_is_no_backlog() -> None:
    nothing = int64s([])
    with pytest.raises(SourceError, match="nothing waits there"):
        backlog(
            source="store", store_ms=nothing, due_ms=nothing, level=nothing, topics=[],
            body_bytes=nothing,
        )  # fmt: skip
