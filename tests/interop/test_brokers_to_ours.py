# SPDX-License-Identifier: Apache-2.0
"""Stores that real brokers left, stopped or killed, are read by us without one difference.

What is right comes from the producer and from RocketMQ's own client (store_maker); what is judged
is this project's reading of the same files: levels, wheel, queues and records.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from message_store.files.places import placed
from message_store.files.segments import SegmentReader, list_segments
from message_store.files.store_root import StoreRoot
from message_store.format.message import StoredMessage
from message_store.format.message_codec import decode_message_at
from message_store.format.record_layout import MAGIC_BLANK
from message_store.interface.delay_store import Pending
from message_store.reading.consume_queue import read_queue
from migrate.look.pending import pending_messages
from migrate.report.report import BadRecord
from migrate.source.places import places_in
from tests.interop.account import user_properties
from tests.interop.broker import LOGS
from tests.interop.conftest import MakeBroker
from tests.interop.jars import LAST
from tests.interop.judge import queues_of
from tests.interop.store_maker import RETRY_TOPIC, Line, RealStore, StorePlan, make_store
from tests.interop.workload import TOPICS, level_delays_ms
from timer_wheel import read_wheel_store
from timer_wheel.reading.timeline import read_timeline

DELAYS: Final = level_delays_ms("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
PRECISION_MS: Final = 1000
WHEEL: Final = {
    "timerRollWindowSlot": 30,
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": 10_400,
}
TIMELINE: Final = {"timerRocksDBEnable": "true", "recallMessageEnable": "true"}

# A message that is due beyond the window goes into the slot 30 s after it was stored. It is placed
# again when that slot is over, and the broker writes down once a second how far it has come: killed
# in between, it has placed some again and does not know.
KILL_S: Final = 31.25

# Topic, queue id, unique key, tags, keys, user properties, digest of the body, time of birth.
Row = tuple[str, int, str | None, str | None, str | None, tuple[tuple[str, str], ...], str, int]


def plan(version: str, *, killed: bool) -> StorePlan:
    timers = not version.startswith("4.")
    return StorePlan(
        name=version,
        version=version,
        seed=11,
        messages=800,
        killed=killed,
        timers=timers,
        settings=WHEEL if timers else {},
        linger_s=25,
        kill_s=KILL_S if killed and timers else None,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            plan(version, killed=killed),
            id=f"{version}-{'killed' if killed else 'stopped'}",
            marks=[pytest.mark.interop(version), pytest.mark.nightly],
        )
        for version in ("4.9.7", "5.3.3", "5.4.0", "5.5.0", "5.5.1")
        for killed in (False, True)
    ],
)
def store(request: pytest.FixtureRequest, scratch: Path, make_broker: MakeBroker) -> RealStore:
    chosen: StorePlan = request.param
    folder = scratch / f"{chosen.version}-{chosen.killed}"
    folder.mkdir()
    return make_store(chosen, folder)


def test_the_store_holds_what_this_test_is_about(store: RealStore) -> None:
    counts = store.about["counts"]
    kinds = ["sent:pending", "sent:delivered", "sent:normal", "sent:half", "sent:rolledback"]
    if not store.about["version"].startswith("4."):
        kinds.append("sent:recalled")
        assert max(line.get("rolls", 0) for line in store.lines) >= 1
    assert [kind for kind in kinds if not counts.get(kind)] == []
    assert store.about["extraInStoreNotInExpected"] == 0
    assert (store.root / "abort").exists() == ("KILL" in store.about["howStopped"])


def test_what_waits_is_what_was_sent_and_not_delivered(store: RealStore) -> None:
    truth = [line for line in store.lines if line["state"] == "pending"]
    found = list(pending_messages(store.root, now_ms=store.about["stoppedMs"]))
    pending = [each for each in found if not isinstance(each, BadRecord)]
    assert len(found) == len(pending)
    records = records_at(store.root, [each.commit_log_offset for each in pending])
    rows = Counter(
        (row_of(record), each.due_ms) for record, each in zip(records, pending, strict=True)
    )
    assert differences(rows, Counter((true_row(line), due_ms(line)) for line in truth)) == []


def test_what_was_recalled_is_known_by_the_markers_of_the_version(store: RealStore) -> None:
    recalled = sorted(line["uniqKey"] for line in store.lines if line["state"] == "recalled")
    names_topic = store.about["version"] == "5.3.3"
    for setting, expected in ((None, recalled), (names_topic, recalled), (not names_topic, [])):
        wheel = read_wheel_store(
            StoreRoot(store.root),
            now_ms=store.about["stoppedMs"],
            topic_in_delete_key=setting,
            after_crash=not StoreRoot(store.root).was_stopped_cleanly,
        )
        records = records_at(store.root, wheel.cancelled.commit_log_offset.tolist())
        assert sorted(str(record.unique_key) for record in records) == expected
        assert wheel.recalled_by_topic_count == (len(recalled) if names_topic else 0)


def test_what_stands_in_the_topics_is_what_was_delivered(store: RealStore) -> None:
    truth = [line for line in store.lines if line["state"] in ("delivered", "normal")]
    rows: Counter[tuple[Row, int]] = Counter()
    for topic, queue_id in queues_of(store.root):
        if topic in (*TOPICS, RETRY_TOPIC):
            entries = read_queue(StoreRoot(store.root).consume_queue(topic, queue_id))
            records = records_at(store.root, entries.commit_log_offset.tolist())
            rows.update((row_of(record), record.store_timestamp_ms) for record in records)
    for record in not_in_any_queue(store.root):
        if record.topic in (*TOPICS, RETRY_TOPIC):
            rows[row_of(record), record.store_timestamp_ms] += 1
    wanted = Counter((true_row(line), line["deliveredStoreTimestamp"]) for line in truth)
    assert differences(rows, wanted) == []


@pytest.mark.nightly
@pytest.mark.interop(LAST)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("where", ["timeline", "log elsewhere"])
def test_what_waits_in_other_places_is_what_was_sent(
    where: str, killed: bool, scratch: Path
) -> None:
    """Timers in RocksDB, or a log in two directories."""
    folder = scratch / f"{where}-{killed}".replace(" ", "-")
    folder.mkdir()
    is_timeline = where == "timeline"
    disks = [folder / name for name in ("disk-a", "disk-b")]
    scattered = {LOGS: ",".join(map(str, disks)), "mappedFileSizeCommitLog": 1 << 16}
    settings: Mapping[str, object] = TIMELINE if is_timeline else scattered
    plan = StorePlan(
        where, LAST, seed=13, messages=300, killed=killed, timers=is_timeline, settings=settings
    )
    store = make_store(plan, folder)
    conf = {name: str(value) for name, value in settings.items()}
    with placed(store.root, places_in(store.root, conf)):
        found = list(pending_messages(store.root, now_ms=store.about["stoppedMs"]))
    is_told = read_timeline(StoreRoot(store.root)) is not None  # a kill may take all of it
    assert is_told is is_timeline or (killed and is_timeline)
    assert is_timeline or all(map(list_segments, disks))
    pending = sorted((str(e.unique_key), e.topic) for e in found if isinstance(e, Pending))
    assert len(pending) == len(found) > 50
    truth = [line for line in store.lines if line["state"] == "pending"]
    assert pending == sorted((line["uniqKey"], line["topic"]) for line in truth)


def records_at(root: Path, offsets: Iterable[int]) -> list[StoredMessage]:
    with SegmentReader(root / "commitlog") as log:
        sizes = ((each, int.from_bytes(log.read_at(each, 4), "big")) for each in offsets)
        return [decode_message_at(log.read_at(offset, size)) for offset, size in sizes]


def not_in_any_queue(root: Path) -> Iterator[StoredMessage]:
    """Read what a killed broker had stored and not yet entered into a queue: the log's end.

    Its slave enters them when it starts, as the broker itself would.
    """
    queues = (StoreRoot(root).consume_queue(*each) for each in queues_of(root))
    end = max(read_queue(each).indexed_end for each in queues)
    with SegmentReader(root / "commitlog") as log:
        for segment in log.segments:
            place = max(end, segment.start_offset)
            while place + 8 <= segment.start_offset + segment.length_bytes:
                head = log.read_at(place, 8)
                size = int.from_bytes(head[:4], "big")
                if size == 0 or int.from_bytes(head[4:], "big", signed=True) == MAGIC_BLANK:
                    break
                yield decode_message_at(log.read_at(place, size))
                place += size


def row_of(record: StoredMessage) -> Row:
    body = zlib.decompress(record.body) if record.is_compressed else record.body
    waits = record.topic != record.real_topic and "REAL_QID" in record.properties
    return (
        record.real_topic,
        int(record.properties["REAL_QID"]) if waits else record.queue_id,
        record.unique_key,
        record.tags,
        record.properties.get("KEYS"),
        tuple(sorted(user_properties(record.properties).items())),
        hashlib.sha1(body).hexdigest(),
        record.born_timestamp_ms,
    )


def true_row(line: Line) -> Row:
    return (
        line["topic"],
        line["realQueueId"],
        line["uniqKey"],
        line["tag"],
        line["keys"],
        tuple(sorted(line["userProperties"].items())),
        line["bodySha1"],
        line["bornTimestamp"],
    )


def due_ms(line: Line) -> int:
    """When a broker delivers: a level's due time, or the end of the slot."""
    if "timerOutMs" in line:
        return int(line["timerOutMs"]) + PRECISION_MS
    return int(line["storeTimestamp"]) + DELAYS[line["delayLevel"]]


def differences(found: Counter[tuple[Row, int]], wanted: Counter[tuple[Row, int]]) -> list[str]:
    """Name a few of what is missing and of what is too much."""
    missing = [f"missing {row}" for row in (wanted - found).elements()]
    return missing[:5] + [f"unexpected {row}" for row in (found - wanted).elements()][:5]
