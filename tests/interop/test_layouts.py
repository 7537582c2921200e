# SPDX-License-Identifier: Apache-2.0
"""Every layout in which brokers left a backlog, in one target, opened by three brokers: what waited
in each store comes once, as it was sent.

DLedger groups, consume queues in RocksDB, a log elsewhere, a group with a controller, and a slave
that acted as master. Of stores with a used wheel the levels are converted, and the timers written
as a new wheel. All of it is overdue: what comes early is for other modules.
"""

import json
import lzma
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from message_store.files.places import placed
from message_store.files.store_root import StoreRoot
from migrate.convert import convert_merged
from migrate.settings import ConvertOptions, read_broker_conf
from migrate.source.members import choose_of_group
from migrate.source.places import places_in
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import WHEEL, TableOptions, pending_rows
from migrate.table.wheel_commit import begin_write, commit_rows
from migrate.table.wheel_staging import WriteRun, stage_rows
from migrate.verify.verify import verify_all
from tests.independent.real_stores import (
    ACTING_SLAVE_55,
    CONTROLLER_55,
    DLEDGER_GROUPS,
    FIXTURE_GROUP,
    FIXTURES,
    LEVELS_551_CLEAN,
    LOG_ELSEWHERE_49,
    ROCKSDB_STORES,
    TWO_LOGS_49,
    WHEELS_551,
    RealStore,
    TruthLine,
    unpack,
    unpack_group,
    unpack_roots,
)
from tests.interop.account import once
from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.judge import Judge, Received, copy_store
from tests.interop.stages import now_ms
from tests.migrate.conversions import SMALL_FILES

ORDINARY: Final = (LEVELS_551_CLEAN, *ROCKSDB_STORES, *WHEELS_551)
NEW: Final = ("5.3.3", NEWEST, LAST)
ACTED: Final = "a1"

pytestmark = [pytest.mark.nightly, pytest.mark.interop(*NEW)]

# A message: its unique key, whether it is a retry, which shares that key, and its body's SHA-1.
Message = tuple[str | None, bool, str]


@attrs.frozen
class Source:
    """A store to convert, and what waited in it as its truth says."""

    name: str
    root: Path
    waiting: Sequence[Message]
    topics: frozenset[str]
    levels_only: bool = False

    @classmethod
    def of(cls, store: RealStore, lines: Iterable[TruthLine] | None = None) -> "Source":
        lines = store.pending_in_levels() if lines is None else lines
        return cls(
            store.name,
            store.root,
            [(line.unique_key, line.kind == "retry", line.body_sha1) for line in lines],
            frozenset(store.about["topics"]),
            levels_only=store.name in WHEELS_551,
        )


@attrs.frozen
class Opened:
    """What waited by its store, and what each broker delivered of the one target of all."""

    sources: Sequence[Source]
    received: Mapping[str, Sequence[Received]]


def best_of_group(name: str, directory: Path) -> Source:
    """The member that the group would elect; of two that end alike the one whose queues do, too."""
    members = unpack_group(name, directory)
    leader = next(iter(members.values())).about["expectedIsOf"]
    roots = list(dict.fromkeys([members[leader].root, *(e.root for e in members.values())]))
    assert len(roots) == 1 or choose_of_group(roots).store == members[leader].root
    return Source.of(members[leader])


def with_places(name: str, directory: Path, held: ExitStack) -> Source:
    """A store whose configuration says where its log lies."""
    whole = unpack(name, directory)
    conf = directory / "broker.conf"
    conf.write_text(conf.read_text("utf-8").replace("@DIR@", str(directory)), "utf-8")
    store = attrs.evolve(whole, root=directory / "store")
    held.enter_context(placed(store.root, places_in(store.root, read_broker_conf(conf))))
    return Source.of(store)


def slave_that_acted(directory: Path) -> Source:
    """It knows by its offsets alone what it gave to another broker."""
    with lzma.open(FIXTURES / f"{ACTING_SLAVE_55}.expected.jsonl.xz", "rt", encoding="utf-8") as f:
        lines: list[dict[str, Any]] = [json.loads(line) for line in f]
    waiting = [e for e in lines if (e["state"], e.get("waitsIn")) == ("pending", ACTED)]
    return Source(
        ACTING_SLAVE_55,
        unpack_roots(ACTING_SLAVE_55, directory) / ACTED,
        [(line["uniqKey"], line["kind"] == "retry", line["bodySha1"]) for line in waiting],
        frozenset(line["topic"] for line in waiting),
    )


@pytest.fixture(scope="module")
def opened(make_broker: MakeBroker, scratch: Path) -> Opened:
    with ExitStack() as held:
        sources, target = converted(scratch, held)
    return open_by_all(make_broker, sources, target)


def open_by_all(make_broker: MakeBroker, sources: Sequence[Source], target: Path) -> Opened:
    stores = {
        version: copy_store(target, target.with_name(f"{target.name}-{version}")) for version in NEW
    }
    brokers = {version: make_broker(version, stores[version]) for version in NEW}
    topics = sorted(frozenset().union(*(source.topics for source in sources)))
    expect = sum(len(source.waiting) for source in sources)

    def open_one(version: str) -> list[Received]:
        broker = brokers[version]
        judge = Judge(broker, target.with_name(f"judge-{target.name}-{version}"))
        with (
            broker,
            judge.consume(
                topics, FIXTURE_GROUP, expect=expect, deadline_s=300, settle_s=4
            ) as consumer,
        ):
            return once(consumer.wait())

    with ThreadPoolExecutor(len(NEW)) as pool:
        return Opened(sources, dict(zip(NEW, pool.map(open_one, NEW), strict=True)))


def converted(scratch: Path, held: ExitStack) -> tuple[list[Source], Path]:
    """One target of all layouts, as the truth of each source has it."""
    here = scratch / "sources"
    sources = [
        *(best_of_group(name, here / name) for name in (*DLEDGER_GROUPS, CONTROLLER_55)),
        *(Source.of(unpack(name, here / name)) for name in ORDINARY),
        *(with_places(name, here / name, held) for name in (TWO_LOGS_49, LOG_ELSEWHERE_49)),
        slave_that_acted(here / ACTING_SLAVE_55),
    ]
    target = scratch / "target"
    members = [
        ConvertOptions(
            source=source.root,
            target=target,
            settings=SMALL_FILES,
            levels_only=source.levels_only,
            after_crash=(source.root / "abort").exists(),
        )
        for source in sources
    ]
    report = convert_merged(members)
    assert [each.total("converted") for each in report.sources] == [
        len(source.waiting) for source in sources
    ]
    verified = verify_all([source.root for source in sources], target, spark=None)
    assert [each.is_clean for each in verified] == [True] * len(sources)
    return sources, target


@pytest.fixture(scope="module")
def written(make_broker: MakeBroker, scratch: Path) -> Opened:
    """The timers of used wheels, without those that a broker had for itself, as one new wheel."""
    run = WriteRun(scratch / "timers", "run", now_ms(), SMALL_FILES)
    begin_write(run, overwrite=False)
    sources, staged = [], []
    for number, name in enumerate(WHEELS_551):
        store = unpack(name, scratch / "wheels" / name)
        lines = [e for e in store.pending if e.level is None and e.kind != "pop"]
        sources.append(Source.of(store, lines))
        options = TableOptions(now_ms=store.stopped_ms, include_body=True)
        rows = pending_rows(store.root, WHEEL, options)
        batches = pending_batches(StoreRoot(store.root), WHEEL, rows, options)
        users = (
            each.filter(pc.is_in(each["topic"], pa.array(sorted(sources[-1].topics))))
            for each in batches
        )
        staged.append(stage_rows(run, number, users))
    commit_rows(run, staged, overwrite=False)
    return open_by_all(make_broker, sources, run.target)


@pytest.mark.parametrize("version", NEW)
def test_timers_of_used_wheels_come_once_from_one_that_was_written(
    version: str, written: Opened
) -> None:
    require_once(version, written)


@pytest.mark.parametrize("version", NEW)
def test_what_waited_in_every_layout_comes_once_and_as_it_was_sent(
    version: str, opened: Opened, tell: Tell
) -> None:
    total = require_once(version, opened)
    tell(f"{version}, {total:,} that waited in {len(opened.sources)} stores of all layouts")


def require_once(version: str, opened: Opened) -> int:
    """Each message of each store came once, and nothing else; returns how many."""
    found = Counter(
        (each.unique_key, each.is_retry, each.body_sha1) for each in opened.received[version]
    )
    for source in opened.sources:
        assert source.waiting
        wrong = {each: found[each] for each in source.waiting if found[each] != 1}
        assert wrong == {}, source.name
    assert found.total() == sum(len(source.waiting) for source in opened.sources)
    return found.total()
