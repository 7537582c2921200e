# SPDX-License-Identifier: Apache-2.0
"""The stores real brokers left behind (tests/fixtures), unpacked, with the truth about them."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from tests.independent.raw_files import segments

FIXTURES = Path(__file__).parent.parent / "fixtures"
FIXTURE_GROUP = "fixture_group"
"""The consumer group of every one of these brokers."""

LEVELS_49_CLEAN = "levels-4.9.7-clean"
LEVELS_49_CRASH = "levels-4.9.7-crash"
LEVELS_49_DEFAULT_SIZES = "levels-4.9.7-default-sizes"
LEVELS_55_CLEAN = "levels-5.5.0-clean"
WHEEL_55_CLEAN = "wheel-5.5.0-clean"
TIMELINE_54_CLEAN = "timeline-5.4.0-clean"
TIMELINE_54_CRASH = "timeline-5.4.0-crash"
TIMELINE_55_CLEAN = "timeline-5.5.0-clean"
TIMELINE_55_CRASH = "timeline-5.5.0-crash"
TWO_LOGS_49 = "levels-4.9.7-two-log-paths"
LOG_ELSEWHERE_49 = "levels-4.9.7-log-elsewhere"
CONTROLLER_55 = "levels-5.5.1-controller"
ACTING_SLAVE_55 = "levels-5.5.1-acting-slave"
DLEDGER_49_CLEAN = "levels-4.9.7-dledger-clean"
DLEDGER_49_CRASH = "levels-4.9.7-dledger-crash"
DLEDGER_49_UPGRADED = "levels-4.9.7-dledger-upgraded"
DLEDGER_55_CLEAN = "levels-5.5.0-dledger-clean"
ROCKSDB_55_CLEAN = "levels-5.5.1-rocksdb-queues"
ROCKSDB_55_CRASH = "levels-5.5.1-rocksdb-queues-crash"
ROCKSDB_55_BEHIND = "levels-5.5.1-rocksdb-queues-behind"
ROCKSDB_55_WHEEL = "wheel-5.5.1-rocksdb-queues"
LEVELS_551_CLEAN = "levels-5.5.1-clean"
WHEEL_551_CLEAN = "wheel-5.5.1-clean"
WHEEL_551_POP = "wheel-5.5.1-pop"
COMBINED_55_CLEAN = "levels-5.5.1-combine"
COMBINED_55_CRASH = "levels-5.5.0-combine-crash"

LEVEL_STORES = [LEVELS_49_CLEAN, LEVELS_49_CRASH, LEVELS_49_DEFAULT_SIZES, LEVELS_55_CLEAN]
ALL_STORES = [*LEVEL_STORES, WHEEL_55_CLEAN]
DLEDGER_GROUPS = [DLEDGER_49_CLEAN, DLEDGER_49_CRASH, DLEDGER_49_UPGRADED, DLEDGER_55_CLEAN]
COMBINED_STORES = [COMBINED_55_CLEAN, COMBINED_55_CRASH]
ROCKSDB_STORES = [ROCKSDB_55_CLEAN, ROCKSDB_55_CRASH, ROCKSDB_55_BEHIND, *COMBINED_STORES]
WHEELS_551 = [WHEEL_551_CLEAN, WHEEL_551_POP, ROCKSDB_55_WHEEL]
ABSENT = "absent"


@attrs.frozen(kw_only=True)
class TruthLine:
    """One message: what its producer sent, and where it was when the broker stopped."""

    kind: str
    """`sent`, `retry`: returned by a consumer, or `pop`: for what a pop consumer took."""
    state: str
    """delivered, pending, normal (no delay), half, rolledback, recalled."""
    unique_key: str
    topic: str
    queue_id: int
    tags: str | None
    keys: str | None
    user_properties: Mapping[str, str]
    body_sha1: str
    body_bytes: int
    born_timestamp_ms: int | None
    store_timestamp_ms: int | None
    """When it entered the level or the wheel; None for what never got out of a transaction."""
    level: int | None
    delay_queue_offset: int | None
    """Its index in the level's (or the timer topic's) queue."""
    timer_out_ms: int | None
    rolls: int
    """How often it was put round again."""
    delivered_store_timestamp_ms: int | None


@attrs.frozen(kw_only=True)
class RealStore:
    name: str
    root: Path
    about: Mapping[str, Any]
    truth: list[TruthLine]

    @property
    def stopped_ms(self) -> int:
        return int(self.about["stoppedMs"])

    @property
    def is_crashed(self) -> bool:
        return (self.root / "abort").exists()

    @property
    def commit_log_file_bytes(self) -> int:
        return segments(self.log_at(0))[0].stat().st_size

    def log_at(self, offset: int) -> Path:
        """The directory of the log's file for an offset: of a DLedger member one of two."""
        entries = next((each / "data" for each in self.root.glob("dledger-*")), None)
        if entries is not None and (offset >= int(segments(entries)[0].name)):
            return entries
        return self.root / "commitlog"

    @property
    def queue_file_bytes(self) -> int:
        queue = next((self.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").iterdir())
        return segments(queue)[0].stat().st_size

    @property
    def pending(self) -> list[TruthLine]:
        """What waits, in a level or in a wheel."""
        return [line for line in self.truth if line.state == "pending"]

    def pending_in_levels(self) -> list[TruthLine]:
        """What a conversion must yield, in the order of the levels and their queues."""
        lines = [line for line in self.pending if line.level is not None]
        return sorted(lines, key=lambda line: (line.level, line.delay_queue_offset))


def load_about(name: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((FIXTURES / f"{name}.about.json").read_text("utf-8"))
    return about


def load_truth(name: str) -> list[TruthLine]:
    return [*_truth(name)]


@lru_cache(4)
def _truth(name: str) -> list[TruthLine]:
    with lzma.open(FIXTURES / f"{name}.expected.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [_truth_line(json.loads(line)) for line in lines]


def load_group_truth(name: str, member: str) -> list[TruthLine]:
    """The truth of one member: what it has, and in which state."""
    with lzma.open(FIXTURES / f"{name}.expected.jsonl.xz", "rt", encoding="utf-8") as lines:
        of_all = [json.loads(line) for line in lines]
    of_one = [{**e, "state": e.get("onOtherMembers", {}).get(member, e["state"])} for e in of_all]
    return [_truth_line(line) for line in of_one if line["state"] != ABSENT]


def _truth_line(line: Mapping[str, Any]) -> TruthLine:
    return TruthLine(
        kind=line["kind"],
        state=line["state"],
        unique_key=line["uniqKey"],
        topic=line["topic"],
        queue_id=line["realQueueId"],
        tags=line["tag"],
        keys=line["keys"],
        user_properties=line["userProperties"],
        body_sha1=line["bodySha1"],
        body_bytes=line["bodyLength"],
        born_timestamp_ms=line["bornTimestamp"],
        store_timestamp_ms=line["storeTimestamp"],
        level=line.get("delayLevel"),
        delay_queue_offset=line.get("delayQueueOffset"),
        timer_out_ms=line.get("timerOutMs"),
        rolls=line.get("rolls", 0),
        delivered_store_timestamp_ms=line.get("deliveredStoreTimestamp"),
    )


def unpack(name: str, directory: Path) -> RealStore:
    """Unpack a store into a directory (made when absent); holes stay holes."""
    _extract(name, directory)
    return RealStore(name=name, root=directory, about=load_about(name), truth=load_truth(name))


def unpack_group(name: str, directory: Path) -> dict[str, RealStore]:
    """Unpack all members of a DLedger group, by their ids; the truth of each is its own."""
    _extract(name, directory)
    about = load_about(name)
    return {
        member: RealStore(
            name=name,
            root=directory / member,
            about=about,
            truth=load_group_truth(name, member),
        )
        for member in about["roots"]
    }


def unpack_roots(name: str, directory: Path) -> Path:
    """Unpack several stores that are no members of one group, each below the directory."""
    _extract(name, directory)
    return directory


@lru_cache(4)
def _archive(name: str) -> bytes:
    """Without compression: the tests of a module unpack one store again and again."""
    return lzma.decompress((FIXTURES / f"{name}.tar.xz").read_bytes())


def _extract(name: str, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(_archive(name))) as archive:
        # Python 3.11.0 to 3.11.3, which Debian 12 has, knows no filters; the archive is our own.
        caution: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(directory, **caution)
