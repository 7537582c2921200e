# SPDX-License-Identifier: Apache-2.0
"""Stores whose files, configuration or disk are wrong, and converted stores that are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from legacy_levels.delivery_marks import FLUSHED_NAME, DeliveryMark, write_mark
from message_store import AfterMs, ManualClock, Message
from message_store.files.config_files import MESSAGE_TYPE, encode_topics, read_topics
from message_store.files.log_row import open_log
from message_store.files.store_root import StoreRoot
from message_store.format.record_layout import HEAD_V4_V4
from message_store.reading.commit_log import find_log_end
from message_store.reading.unfinished_change import DONE
from message_store.writing.losses import StoreEnds
from migrate.changes.note import RETIRE, Change, begin_change
from migrate.in_place.checks import read_ends
from migrate.settings import TargetSettings
from migrate.write.publishing import UNFINISHED_WHEEL
from tests.faults.damage import flip
from tests.independent.dledger_member import make_member
from tests.independent.level_store_builder import T0, LevelMessage
from tests.independent.queue_database import move_queues
from tests.migrate.check_case import Case
from tests.migrate.check_level_cases import LEVEL_TOPIC, many, store, then
from tests.migrate.conversions import NOW_MS as CONVERTED_MS
from tests.migrate.conversions import SMALL, build_and_convert
from timer_wheel import WheelStore

HOUR_MS = 3_600_000
SMALL_FILES = {"commit_log_file_bytes": 1024}


def without_log(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()


def without_queues(root: Path) -> None:
    for path in sorted((root / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def cut_off(root: Path) -> None:
    file = root / "delaywheel" / "commitlog-behind-4096"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"abc")


def noted(root: Path) -> None:
    file = root / "delaywheel" / "wheel-lost.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('[{"commit_log_offset": 77, "reason": "a body that is another"}]')


def with_cancel(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """A wheel on which a message was cancelled, and ``change`` of its log file."""

    def make(root: Path) -> None:
        with WheelStore.open(root, clock=ManualClock(T0 + 20_000)) as wheel:
            wheel.cancel(wheel.schedule(Message("orders", b"", unique_key="K5"), AfterMs(60_000)))
        change(log_file(root, 0))

    return make


def putting(old: bytes, new: bytes) -> Callable[[Path], object]:
    """Bytes of the delete marker's record, which come last in the log, are others."""

    def change(log: Path) -> None:
        with log.open("r+b") as file:  # a log file of 1 GiB, most of it a hole
            place = file.read(1 << 20).rindex(old)
            file.seek(place)
            file.write(new)

    return change


def lose_cancel(log: Path) -> None:
    putting(b"REAL_TOPIC", b"REAL_TOPIB")(log)
    WheelStore.open(log.parents[1], clock=ManualClock(T0 + 20_000)).close()


def log_file(root: Path, number: int) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def shorten(root: Path) -> None:
    os.truncate(log_file(root, 1), 500)


def tear(*names: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        text = (root / "config/topics.json").read_bytes()
        for name in ("topics.json", "topics.json.bak"):
            (root / "config" / name).write_bytes(text[:40] if name in names else text)

    return then(store(), change)


def future_checkpoint(root: Path) -> None:
    later = (T0 + HOUR_MS).to_bytes(8, "big")
    (root / "checkpoint").write_bytes((later * 3).ljust(4096, b"\0"))


def ends_noted_behind_the_log(root: Path) -> None:
    """As after the log's last file was removed from a store that ``delaywheel`` had closed."""
    (root / "delaywheel").mkdir(exist_ok=True)
    StoreEnds(1 << 30, {}).write(StoreRoot(root))


def damaged_in_its_last_file(root: Path) -> None:
    """A bit of the first record's magic is flipped, in a log of which the end was noted."""
    (root / "delaywheel").mkdir(exist_ok=True)
    with open_log(StoreRoot(root)) as log:
        StoreEnds(find_log_end(log).log_end, {}).write(StoreRoot(root))
    flip(log_file(root, 0), HEAD_V4_V4.offset_of("magic"), 0)


def longer_queues_noted(root: Path) -> None:
    """As after the last file of a level queue was removed since ``delaywheel`` flushed it."""
    (root / "delaywheel").mkdir(exist_ok=True)
    mark = DeliveryMark(0, {}, ends=dict.fromkeys(range(1, 19), 1_000))
    write_mark(root, FLUSHED_NAME, mark, is_durable=False)


def begun_change(root: Path) -> Change:
    where = StoreRoot(root)
    return begin_change(
        where,
        kind=RETIRE,
        now_ms=T0,
        before=read_ends(where),
        after=read_ends(where),
        offsets_after=(root / "config/delayOffset.json").read_bytes(),
        asked={},
        report={},
    )


def target(
    change: Callable[[Path], object] = lambda root: None, **arguments: Any
) -> Callable[[Path], object]:
    """A fresh target of thirty messages, in several log files."""

    def make(root: Path) -> None:
        items = [
            LevelMessage(level=18, store_timestamp_ms=CONVERTED_MS - 1000 - n)
            for n in range(30, 0, -1)
        ]
        bad = [LevelMessage(level=18, store_timestamp_ms=CONVERTED_MS, without=["REAL_QID"])]
        is_bad = arguments.get("on_bad_record") == "quarantine"
        build_and_convert(root.parent, [*items, *bad * is_bad], **arguments)
        (root.parent / "target").rename(root)
        change(root)

    return make


def topic_says(message_type: str) -> Callable[[Path], object]:
    """Each topic of topics.json has this type."""

    def change(root: Path) -> None:
        topics = [
            attrs.evolve(topic, attributes={MESSAGE_TYPE: message_type})
            for topic in read_topics(root).values()
        ]
        assert topics
        (root / "config/topics.json").write_bytes(encode_topics(topics))

    return change


def aged(time_ms: int) -> Callable[[Path], object]:
    return lambda root: os.utime(log_file(root, 0), (time_ms / 1000, time_ms / 1000))


def with_epochs(root: Path) -> None:
    (root / "epochFileCheckpoint").write_bytes(b"2\n812872448\n1-0\n2-2688079\n")
    (root / "brokerIdentity").write_bytes(b"judge#judge-a#2")


ACTING = {"enableSlaveActingMaster": "true", "brokerRole": "SLAVE"}
CASES = [
    Case(code="store-crashed", make=store(abort=True)),
    Case(code="undelivered", make=then(store(), noted), says="a body that is another"),
    Case(code="records-cut-off", make=then(store(), cut_off), says="3 bytes"),
    Case(code="disk-cleans-early", make=store(), options={"disk_used": 0.8}, says="80% full"),
    Case(
        code="disk-cleans-early",
        make=store(),
        options={"disk_used": 0.6, "conf": {"diskMaxUsedSpaceRatio": "50"}},
        says="is 50 %",
    ),
    Case(code="disk-deletes", make=store(), options={"disk_used": 0.85}, says="85% full"),
    Case(code="disk-refuses", make=store(), options={"disk_used": 0.97}, says="97% full"),
    Case(code="store-of-slave", make=store(), options={"conf": {"brokerRole": "SLAVE"}}),
    Case(
        code="file-length",
        make=then(many(30, commit_log_file_bytes=4096), shorten),
        says="500 bytes long, not 4,096",
    ),
    Case(
        code="file-length-setting",
        make=store(),
        options={"conf": {"mappedFileSizeCommitLog": "131072"}},
        says="131,072, the files have 65,536",
    ),
    Case(
        code="file-length-setting",
        make=store(),
        options={"conf": {"mappedFileSizeConsumeQueue": "6000000"}},
    ),
    Case(
        code="file-missing",
        says="is missing between",
        make=then(many(60, commit_log_file_bytes=4096), lambda root: log_file(root, 1).unlink()),
    ),
    Case(code="log-missing", make=then(store(), without_log)),
    Case(code="level-queue-cut", make=then(store(), longer_queues_noted), says="has lost its last"),
    Case(code="log-cut-short", make=then(store(), ends_noted_behind_the_log), says="are lost"),
    Case(code="log-damaged", make=then(store(), damaged_in_its_last_file), says="log offset 0"),
    Case(code="config-damaged", make=tear("topics.json"), says="truncated"),
    Case(code="config-unreadable", make=tear("topics.json", "topics.json.bak"), says="truncated"),
    Case(code="log-not-indexed", make=store(indexed_items=2), says="1 delayed message is"),
    Case(
        code="recovery-ten-files",
        make=then(many(60, **SMALL_FILES), without_queues),
        says="the records from 0 on",
    ),
    Case(code="checkpoint-ahead", make=then(store(abort=True), future_checkpoint)),
    Case(code="upgrade-replay", make=store(), says="3 messages wait"),
    Case(code="dledger-member", make=then(store(), make_member), says="ends at entry"),
    Case(code="queues-in-rocksdb", make=then(store(), move_queues)),
    Case(
        code="queues-not-flushed",
        make=then(store(abort=True), lambda root: move_queues(root, flushed=1)),
        says="in the log and in no queue",
    ),
    Case(code="controller-member", make=then(store(), with_epochs), says="of epoch 2"),
    Case(code="store-of-acting-slave", make=store(), options={"conf": ACTING}),
    Case(
        code="delivered-elsewhere",
        make=store(
            LevelMessage(level=3), LevelMessage(level=18, store_timestamp_ms=T0 + 1), offsets={3: 1}
        ),
        options={"conf": ACTING, "now_ms": T0 + HOUR_MS},
        says="no copy here of 1 message",
    ),
    Case(
        code="system-topic-read",
        make=store(consumer_offsets={f"{LEVEL_TOPIC}@group": {"0": 4}}),
        says="consumer group 'group'",
    ),
    Case(
        code="system-topic-changed",
        make=store(topics={LEVEL_TOPIC: 4, "TopicA": 4}),
        says="4 queues",
    ),
    Case(
        code="offsets-moved",
        says="1 message before offset 1",
        make=then(store(offsets={18: 1, 5: 0}), lambda root: begun_change(root).write(DONE)),
    ),
    Case(code="change-unfinished", make=then(store(), begun_change), says="retire"),
    Case(
        code="unreadable",
        make=then(store(offsets=None), lambda root: (root / "config/delayOffset.json").mkdir()),
        says="no ordinary file",
    ),
    Case(
        code="target-unfinished",
        make=then(store(), lambda root: (root / "timerwheel").write_bytes(UNFINISHED_WHEEL)),
    ),
    Case(code="target-opened", make=target(lambda root: (root / "lock").write_bytes(b"lock"))),
    Case(
        code="target-copied", make=target(aged(CONVERTED_MS - HOUR_MS)), says="1 log file is older"
    ),
    Case(
        code="target-expired",
        make=target(aged(CONVERTED_MS)),
        options={"now_ms": CONVERTED_MS + 73 * HOUR_MS},
    ),
    Case(
        code="target-incomplete",
        make=target(lambda root: (root / "timerwheel").unlink()),
        says="no wheel is there",
    ),
    Case(
        code="target-incomplete",
        make=target(lambda root: log_file(root, 1).unlink()),
        says="leads out of the commit log's files",
    ),
    Case(
        code="target-incomplete",
        make=target(lambda root: (root / "config/topics.json").unlink()),
        says="1 topic with pending messages not there",
    ),
    Case(
        code="target-settings",
        make=target(),
        says="timerPrecisionMs is 100, the target was written for 1000",
        options={"target": TargetSettings(precision_ms=100)},
    ),
    Case(
        code="topic-refuses-delayed",
        make=target(settings=attrs.evolve(SMALL, topic_type="keep")),
        says="no message.type",
    ),
    Case(code="topic-refuses-delayed", make=target(topic_says("FIFO")), says="(FIFO)"),
    Case(code="topic-type-unknown", make=target(topic_says("Mixed")), says="('Mixed')"),
    Case(code="topic-type-unknown", make=then(store(), topic_says("delay")), says="delay"),
    Case(
        code="delete-marker-damaged",
        make=with_cancel(putting(b"UNIQKEY\x01K5", b"UNIQKEY\x01K7")),
        says="a delete marker of 'K5' that names 'K7'",
    ),
    Case(
        code="delete-marker-damaged",
        make=with_cancel(putting(b"TIMER_DEL_", b"TIMER_DEM_")),
        says="a delete marker that names no message",
    ),
    Case(
        code="delete-marker-idle",
        make=with_cancel(putting(b"REAL_TOPIC\x01orders", b"REAL_TOPIC\x01orderz")),
        says="the delete marker of 'K5' in 'orderz' cancels no pending message",
    ),
    Case(code="cancel-lost", make=with_cancel(lose_cancel), says="another topic or time"),
    Case(code="quarantine-left", make=target(on_bad_record="quarantine"), says="1 of 1 record"),
]
