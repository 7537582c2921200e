# SPDX-License-Identifier: Apache-2.0
"""The figures of a store: equal to what pending, read and groups count, and served."""

import http.client
import io
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from click.testing import CliRunner

import cli
from consumer_groups import GroupStore, consumer_group, group_topics
from delaywheel.metrics import SNAPSHOT_BOUNDS_S, Metric, StoreMetrics, prometheus_text
from delaywheel.metrics_server import serving
from delaywheel.terminal.options.loop import logged_events
from message_store import AfterMs, AtMs, ManualClock, Message, MessageBatch, Receipt
from message_store.base.errors import TargetError
from message_store.columns.byte_column import ByteColumn
from message_store.interface.runner import run_store
from message_store.reading.engine_choice import EngineName
from migrate.look.inspect import inspect_store
from tests.faults.engines import ENGINES

ROOT = Path(__file__).parents[2]
START_MS = 1_793_000_000_000
NAMES = pytest.mark.parametrize("engine", list(ENGINES))


def by_topic(metrics: list[Metric], name: str) -> Counter[str]:
    [metric] = [each for each in metrics if each.name == name]
    return Counter(
        {dict(each.labels)["topic"]: each.value for each in metric.samples if each.value}
    )


def opened(engine: str, folder: Path, clock: ManualClock) -> GroupStore:
    return cast(GroupStore, ENGINES[engine].open(folder, clock, False))


def waiting(store: GroupStore) -> Counter[str]:
    return Counter(each.topic for each in store.pending())


def in_topic(store: GroupStore, topic: str) -> int:
    return sum(end - first for first, end in store.topic(topic).ranges().values())


@NAMES
def test_figures_are_what_the_store_counts(tmp_path: Path, engine: EngineName) -> None:
    clock = ManualClock(START_MS)
    with opened(engine, tmp_path / "store", clock) as store:
        for number in range(40):
            topic = ("orders", "sent", "paid")[number % 3]
            store.schedule(Message(topic, b"x"), AfterMs(1_000 * (number + 1)))
        clock.tick(5_000)
        store.advance(clock.now_ms())
    with opened(engine, tmp_path / "store", clock) as store:
        metrics = StoreMetrics(store)
        told = metrics.metrics()
        assert by_topic(told, "rocketmq_timing_messages") == waiting(store)
        seen = inspect_store(tmp_path / "store", now_ms=clock.now_ms()).pending
        assert sum(waiting(store).values()) == seen == 35
        assert by_topic(told, "rocketmq_timer_dequeue_total") == Counter()
        came = {topic: in_topic(store, topic) for topic in ("orders", "sent", "paid")}
        receipts = [store.schedule(Message("sent", b"y"), AfterMs(90_000)) for _ in range(5)]
        moved = store.reschedule(receipts[0], AtMs(START_MS + 600_000))
        assert isinstance(moved, Receipt)
        clock.tick(10_000)
        store.advance(clock.now_ms())
        told = metrics.metrics()
        seen = 5 if engine == "levels" else 6  # where a neutralised entry tells nothing
        assert by_topic(told, "rocketmq_timer_enqueue_total")["sent"] == seen
        new = {topic: in_topic(store, topic) - count for topic, count in came.items()}
        assert by_topic(told, "rocketmq_timer_dequeue_total") == Counter(new)
        assert by_topic(told, "rocketmq_timing_messages") == waiting(store)


@NAMES
def test_groups_are_told_with_their_lags(tmp_path: Path, engine: EngineName) -> None:
    clock = ManualClock(START_MS)
    with opened(engine, tmp_path / "store", clock) as store:
        metrics = StoreMetrics(store)
        for _ in range(6):
            store.schedule(Message("orders", b"x"), AfterMs(0))
        store.advance(clock.now_ms())
        group = consumer_group(store, "billing", max_retries=1)
        received = group.receive("orders", 4)
        group.ack(received[0])
        group.retry(received[1])
        group.reject(received[2])
        store.advance(clock.now_ms())
        told = metrics.metrics()
        for topic, lag in group_topics(store, "billing").items():
            for name, value in (
                ("lag", lag.total), ("ready", lag.ready), ("inflight", lag.in_flight),
            ):  # fmt: skip
                assert by_topic(told, f"rocketmq_consumer_{name}_messages")[topic] == value
        assert by_topic(told, "rocketmq_consumer_inflight_messages") == Counter(orders=1)
        dead = by_topic(told, "rocketmq_send_to_dlq_messages_total")
        assert dead == Counter({"%DLQ%billing": 1})
        assert by_topic(told, "rocketmq_timing_messages") == waiting(store)
        assert waiting(store) == Counter({"%RETRY%billing": 1})
        assert by_topic(told, "rocketmq_messages_out_total") == Counter(orders=4)
        clock.tick(20_000)
        store.advance(clock.now_ms())
        assert len(group.receive("orders")) == 3
        told = metrics.metrics()
        out = Counter({"orders": 6, "%RETRY%billing": 1})
        assert by_topic(told, "rocketmq_messages_out_total") == out
        assert by_topic(told, "rocketmq_messages_in_total") == Counter(orders=6)


@NAMES
def test_what_came_in_is_counted_whatever_became_of_it(tmp_path: Path, engine: str) -> None:
    clock = ManualClock(START_MS)
    with opened(engine, tmp_path / "store", clock) as store:
        metrics = StoreMetrics(store)
        receipts = [store.schedule(Message("orders", b"x"), AfterMs(90_000)) for _ in range(4)]
        store.cancel(receipts[0])
        store.reschedule(receipts[1], AtMs(START_MS + 600_000))
        topic = ByteColumn.of(["sent", "orders", "sent"])
        batch = MessageBatch(body=ByteColumn.repeat(b"y", 3), topic=topic)
        store.schedule_batch(batch, np.full(3, START_MS + 5_000))
        clock.tick(10_000)
        store.advance(clock.now_ms())
        came_in = Counter(orders=5, sent=2)
        assert by_topic(metrics.metrics(), "rocketmq_messages_in_total") == came_in


def figure(metrics: list[Metric], name: str, bound: str | None = None) -> int:
    [metric] = [each for each in metrics if each.name == f"rocketmq_timer_{name}"]
    [value] = [
        each.value for each in metric.samples if dict(each.labels).get("timer_bound_s") == bound
    ]
    return value


@NAMES
@pytest.mark.parametrize("is_opened_again", [False, True])
def test_lags_and_a_snapshot_tell_what_is_due(
    tmp_path: Path, engine: EngineName, is_opened_again: bool
) -> None:
    clock = ManualClock(START_MS)
    store = opened(engine, tmp_path / "store", clock)
    metrics = StoreMetrics(store)
    receipts = [
        store.schedule(Message("orders", b"x"), AfterMs(1_000 * after_s))
        for after_s in (1, 30, 30, 120, 7_200)
    ]
    store.cancel(receipts[2])
    clock.tick(500)
    told = metrics.metrics()
    is_placed = engine in ("levels", "time-index") or figure(told, "enqueue_lag") == 0
    assert figure(told, "enqueue_latency") == (0 if is_placed else 500)
    assert figure(metrics.metrics(), "enqueue_lag") == 0
    if is_opened_again or engine == "levels":  # which leave no record of a cancel
        store.close()
        store = opened(engine, tmp_path / "store", clock)
        metrics = StoreMetrics(store)
    told = metrics.metrics()
    bounds = {bound: figure(told, "message_snapshot", str(bound)) for bound in SNAPSHOT_BOUNDS_S}
    assert {bound: count for bound, count in bounds.items() if count} == {
        5: 1, 60: 1, 300: 1, 14_400: 1,
    }  # fmt: skip
    assert (figure(told, "dequeue_lag"), figure(told, "dequeue_latency")) == (0, 0)
    clock.tick(32_000)
    told = metrics.metrics()
    assert figure(told, "dequeue_lag") == 2
    assert 29_500 <= figure(told, "dequeue_latency") <= 31_500
    store.advance(clock.now_ms())
    told = metrics.metrics()
    assert (figure(told, "dequeue_lag"), figure(told, "dequeue_latency")) == (0, 0)
    assert sum(by_topic(told, "rocketmq_timing_messages").values()) == 2
    store.close()


@NAMES
def test_the_storage_and_the_ages_of_what_groups_have_not_done(
    tmp_path: Path, engine: EngineName
) -> None:
    clock = ManualClock(START_MS)
    with opened(engine, tmp_path / "store", clock) as store:
        metrics = StoreMetrics(store)

        def values(name: str) -> list[int]:
            [metric] = [each for each in metrics.metrics() if each.name == f"rocketmq_{name}"]
            return [each.value for each in metric.samples]

        assert values("storage_message_reserve_time") == []
        assert values("storage_flush_behind_bytes") == [0]
        group = consumer_group(store, "billing")
        for tick_ms in (0, 250):
            clock.tick(tick_ms)
            store.schedule(Message("orders", b"x"), AfterMs(0))
            store.advance(clock.now_ms())
        live = store.live
        assert live is not None
        assert values("storage_flush_behind_bytes") == [live.log.end] != [0]
        [first] = group.receive("orders", 1)
        store.flush()
        assert values("storage_flush_behind_bytes") == [0]
        assert values("storage_dispatch_behind_bytes") == [0]
        assert values("storage_size")[0] > live.log.end
        clock.tick(1_000)
        ages = values("consumer_lag_latency"), values("consumer_queueing_latency")
        assert ages == ([1_250], [1_000])
        group.ack(first)
        ages = values("consumer_lag_latency"), values("consumer_queueing_latency")
        assert ages == ([1_000], [1_000])
        group.ack(*group.receive("orders"))
        assert values("consumer_lag_latency") == values("consumer_queueing_latency") == [0]
        assert values("storage_message_reserve_time") == [1_250]


def test_a_program_that_asks_for_figures_loads_no_migration() -> None:
    program = "import sys, delaywheel.metrics; sys.exit('migrate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_the_text_is_what_prometheus_reads(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with opened("wheel", tmp_path / "store", clock) as store:
        metrics = StoreMetrics(store)
        for delay_s in (30, 60, 700, 500_000):
            if delay_s < 200_000:
                store.schedule(Message('a"b\\c', b"x"), AfterMs(1_000 * delay_s))
        text = prometheus_text(metrics.metrics())
    line = re.compile(r'[a-z_]+(\{([a-z_]+="(\\.|[^"\\])*",?)+\})? -?\d+')
    for each in text.splitlines():
        assert each.startswith(("# HELP ", "# TYPE ")) or line.fullmatch(each), each
    assert "# TYPE rocketmq_timing_messages gauge" in text
    assert 'topic="a\\"b\\\\c"} 3' in text
    labels = 'node_type="broker",node_id="broker-a",topic="a\\"b\\\\c"'
    name = "rocketmq_delay_message_latency"
    buckets = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in
               (("60", 2), ("600", 2), ("3600", 3), ("+Inf", 3))]  # fmt: skip
    assert all(bucket in text for bucket in buckets), text
    assert f"{name}_count{{{labels}}} 3" in text


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=250)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_the_page_is_served_until_the_end(tmp_path: Path) -> None:
    store = opened("levels", tmp_path / "store", ManualClock(START_MS))
    store.schedule(Message("orders", b"x"), AfterMs(60_000))
    figures = StoreMetrics(store)
    with serving(figures.metrics, "127.0.0.1", 0) as port:
        status, text = get(port, "/metrics")
        assert status == 200
        assert re.search(r'rocketmq_timing_messages\{.*topic="orders"\} 1\n', text)
        assert get(port, "/")[0] == 404
        with pytest.raises(TargetError), serving(figures.metrics, "127.0.0.1", port):
            pass
        store.close()
        assert get(port, "/metrics") == (503, "the store is closed\n")
    with pytest.raises(ConnectionRefusedError):
        get(port, "/metrics")


def test_events_are_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    clock = ManualClock(START_MS)
    with opened("levels", tmp_path / "store", clock) as store:
        store.schedule(Message("orders", b"x"), AfterMs(1_000))
        with logged_events(is_wanted=True):
            run_store(store, clock, list, until_ms=START_MS + 5_000, flush_every_ms=1_000)
        clock.tick(1_000)
        run_store(store, clock, list, until_ms=START_MS + 9_000)
    events = [json.loads(line) for line in said.getvalue().splitlines()]
    assert [each["count"] for each in events if each["event"] == "delivered"] == [1]
    assert {each["event"] for each in events} == {"delivered", "flushed"}
    assert all(each["level"] == "info" for each in events)
    assert logging.getLogger("message_store").handlers == []


def test_verbs_serve_and_log(tmp_path: Path) -> None:
    now, store = "2026-01-02T03:04:05Z", str(tmp_path / "store")
    words = ["schedule", store, "--engine", "wheel", "--topic", "orders", "--body", "x"]
    run = CliRunner().invoke
    assert run(cli.main, [*words, "--after", "5s", "--now", now]).exit_code == cli.DONE
    later = "2026-01-02T03:05:05Z"
    result = run(cli.main, ["run", store, "--metrics", "0", "--log-events", "--now", later])
    assert result.exit_code == cli.DONE, result.output
    first, *events = result.stderr.splitlines()
    assert re.fullmatch(r"figures for Prometheus: http://127\.0\.0\.1:\d+/metrics", first)
    told = [json.loads(line)["event"] for line in events if line.startswith("{")]
    assert told == ["started", "delivered", "stopped"]
    words = ["consume", store, "orders", "--group", "billing", "--metrics", "127.0.0.1:0"]
    result = run(cli.main, [*words, "--log-events", "--now", later])
    assert result.exit_code == cli.DONE, result.output
    told = [json.loads(line)["event"] for line in result.stderr.splitlines() if line[:1] == "{"]
    assert told == ["started", "acknowledged", "stopped"]
    for wrong in ("nothing", "127.0.0.1:", "127.0.0.1:70000"):
        result = run(cli.main, ["run", store, "--metrics", wrong, "--now", later])
        assert result.exit_code == cli.USAGE
