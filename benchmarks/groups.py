# SPDX-License-Identifier: Apache-2.0
"""What a consumer group costs: ready messages received and acknowledged, in batches and one by one,
and by ``run_consumers``; and what it writes for each.

A group of its own does each, all of them on one topic. Each body is read, and nothing else.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import ACKNOWLEDGED_BATCH
from benchmarks.machine import RESULTS, facts, keeping, prewarm, process_cpu_s, tell
from benchmarks.power import ENTRANTS
from consumer_groups import ConsumerGroup, GroupStore, consumer_group, run_consumers
from consumer_groups.progress_table import SAVE_EVERY_MS
from delaywheel import open_store
from message_store import ManualClock, MessageBatch, SystemClock
from message_store.base.clock import stopwatch_s
from message_store.columns.byte_column import ByteColumn
from message_store.reading.engine_choice import EngineName

_TOPIC = "orders"
_BODY = b"x" * 256
_INVISIBLE_MS = 3_600_000
_PUT_AT_ONCE = 10_000

Work = Callable[[GroupStore, ConsumerGroup, int], None]
"""Receives and acknowledges so many messages."""


def by_batches(batch: int, _store: GroupStore, group: ConsumerGroup, count: int) -> None:
    """Receive so many at a time, read their bodies, acknowledge them together."""
    done = 0
    while done < count:
        received = group.receive(_TOPIC, batch, _INVISIBLE_MS)
        assert all(len(message.body) == len(_BODY) for message in received)
        group.ack(*received)
        done += len(received)


def by_the_loop(store: GroupStore, group: ConsumerGroup, count: int) -> None:
    """Let ``run_consumers`` do it."""
    done = 0

    def handle(message: Any) -> None:
        nonlocal done
        done += len(message.body) == len(_BODY)

    run_consumers(store, {(_TOPIC, group): handle}, stop=lambda: done >= count)


WORK: dict[str, Work] = {
    "batches": partial(by_batches, ACKNOWLEDGED_BATCH),
    "one by one": partial(by_batches, 1),
    "run_consumers": by_the_loop,
}


@contextmanager
def ready(
    engine: EngineName, directory: Path, clock: ManualClock, count: int
) -> Iterator[GroupStore]:
    """A store with so many messages in a topic."""
    with open_store(directory, engine=engine, clock=clock) as store:
        for done in range(0, count, _PUT_AT_ONCE):
            rows = min(_PUT_AT_ONCE, count - done)
            repeat = ByteColumn.repeat
            batch = MessageBatch(body=repeat(_BODY, rows), topic=repeat(_TOPIC, rows))
            now_ms = clock.now_ms()
            store.schedule_batch(batch, np.full(rows, now_ms, np.int64))
            store.advance(now_ms + 60_000)
        store.flush()
        yield store


def measure(
    store: GroupStore, clock: ManualClock, name: str, work: Work, count: int
) -> dict[str, float]:
    """One group's turn: seconds, and how many bytes it adds to the journal: when its messages are
    acknowledged, and after the flush that saves its offsets. The clock stands still until then.
    """
    assert store.live is not None
    journal = store.live.root.group_journal
    at_first = journal.stat().st_size if journal.exists() else 0
    group = consumer_group(store, name)
    assert group.lag(_TOPIC).ready == count
    group.ack(*group.receive(_TOPIC, 1, _INVISIBLE_MS))  # its first lines
    store.flush()
    before, cpu_s, started_s = journal.stat().st_size, process_cpu_s(), stopwatch_s()
    work(store, group, count - 1)
    took = {"s": stopwatch_s() - started_s, "cpu s": process_cpu_s() - cpu_s}
    took["journal bytes"] = journal.stat().st_size - before
    clock.tick(SAVE_EVERY_MS)
    started_s = stopwatch_s()
    store.flush()
    took["flush s"] = stopwatch_s() - started_s
    took["journal bytes left"] = journal.stat().st_size - at_first
    assert group.lag(_TOPIC).total == 0
    return took


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to work")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        measured: dict[str, Any] = {
            "facts": facts(Path(name)), "messages": options.messages, "engines": {},
        }  # fmt: skip
        with keeping("groups", measured, options.results):
            for engine in ENTRANTS:
                rounds: dict[str, list[dict[str, float]]] = {each: [] for each in WORK}
                measured["engines"][engine] = rounds
                prewarm(1 << 30)
                clock = ManualClock(SystemClock().now_ms())
                with ready(engine, Path(name, engine), clock, options.messages) as store:
                    for number in range(options.rounds + 1):
                        tell(f"{engine}: round {number} of {options.rounds}")
                        for what, work in WORK.items():
                            group = f"{what.replace(' ', '-')}-{number}"
                            took = measure(store, clock, group, work, options.messages)
                            if number:  # the first round is thrown away
                                rounds[what].append(took)


if __name__ == "__main__":
    main()
