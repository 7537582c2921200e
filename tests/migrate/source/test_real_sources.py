# SPDX-License-Identifier: Apache-2.0
"""Stores that real brokers left in another form than one directory of files. They are members of
DLedger groups (4.9.7, 5.5.0), have queues in RocksDB (5.5.1) or a log in other places (4.9.7). All
are read as the truth says, converted to it, and stay as they were; so are ordinary ones of 5.5.1.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from legacy_levels.backlog.backlog import read_backlog
from message_store.files.config_files import read_groups, read_topics
from message_store.files.places import placed
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Pending
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.settings import ConvertOptions, read_broker_conf
from migrate.source.places import places_in
from migrate.source.sources import WheelNotEmptyError
from migrate.table.export import export_parquet
from migrate.table.pending_batches import pending_batches
from migrate.table.pending_table import WHEEL, TableOptions, pending_rows
from migrate.table.wheel_commit import begin_write, commit_rows
from migrate.table.wheel_staging import WriteRun, stage_rows
from migrate.verify.verify import verify
from tests.independent.raw_files import record_at
from tests.independent.real_stores import (
    COMBINED_STORES,
    DLEDGER_49_CLEAN,
    DLEDGER_49_CRASH,
    DLEDGER_49_UPGRADED,
    DLEDGER_55_CLEAN,
    FIXTURE_GROUP,
    LEVELS_551_CLEAN,
    LOG_ELSEWHERE_49,
    ROCKSDB_55_BEHIND,
    ROCKSDB_55_CLEAN,
    ROCKSDB_55_CRASH,
    ROCKSDB_STORES,
    TWO_LOGS_49,
    WHEELS_551,
    RealStore,
    unpack,
    unpack_group,
)
from tests.migrate.conversions import SMALL_FILES, assert_is_the_truth
from tests.migrate.mixed_store import state_of

Source = tuple[str, str]
"""The name of a fixture, and the member in it or nothing."""
IN_ROCKSDB: list[Source] = [(name, "") for name in ROCKSDB_STORES]
ORDINARY: list[Source] = [(LEVELS_551_CLEAN, "")]
ELSEWHERE: list[Source] = [(TWO_LOGS_49, ""), (LOG_ELSEWHERE_49, "")]
ONE_OF_EACH: list[Source] = [
    (DLEDGER_49_CLEAN, "n0"),
    (DLEDGER_49_CRASH, "n1"),
    (DLEDGER_49_UPGRADED, "n0"),
    (DLEDGER_55_CLEAN, "n0"),
]
MEMBERS: list[Source] = [
    *ONE_OF_EACH,
    (DLEDGER_49_CLEAN, "n1"),
    (DLEDGER_49_CLEAN, "n2"),
    (DLEDGER_49_CRASH, "n0"),
    (DLEDGER_49_CRASH, "n2"),
]
COPIED_LAST = {
    (DLEDGER_49_CRASH, "n0"): "FD0000000000000000000000000000027C894E0E2F2A7813EBF3008D",
    (DLEDGER_49_CRASH, "n2"): "FD00000000000000000000000000000270B54E0E2F2A78133A3C0BCF",
}
"""The truth was read from queues. The log of a killed follower ends with an entry that no queue has
yet: the copy that the leader had just delivered of this message.
"""
STORED_ANEW = ("store_ms", "size_bytes", "commit_log_offset")
Unpacked = Callable[[Source], RealStore]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    known: dict[Source, RealStore] = {}

    def get(source: Source) -> RealStore:
        name, member = source
        if source not in known:
            directory = tmp_path_factory.mktemp("real") / name
            if member:
                known.update({(name, each): s for each, s in unpack_group(name, directory).items()})
            else:
                known[source] = unpack(name, directory)
        return known[source]

    return get


@pytest.fixture
def store(request: pytest.FixtureRequest, unpacked: Unpacked) -> Iterator[RealStore]:
    """One of these stores; of a log elsewhere its broker.conf names the places."""
    source: Source = request.param
    store = unpacked(source)
    naming: AbstractContextManager[None] = nullcontext()
    if source in ELSEWHERE:
        conf = store.root / "broker.conf"
        conf.write_text(conf.read_text("utf-8").replace("@DIR@", str(store.root)), "utf-8")
        store = attrs.evolve(store, root=store.root / "store")
        naming = placed(store.root, places_in(store.root, read_broker_conf(conf)))
    else:
        copied = COPIED_LAST.get(source)
        truth = [e for e in store.truth if (e.state, e.unique_key) != ("pending", copied)]
        store = attrs.evolve(store, truth=truth)
    before = state_of(store.root)
    with naming:
        yield store
    assert state_of(store.root) == before


def is_in_rocksdb(store: RealStore) -> bool:
    return store.name in ROCKSDB_STORES and store.name not in COMBINED_STORES


def each_of(*sources: Source) -> pytest.MarkDecorator:
    names = ["-".join(filter(None, source)) for source in sources]
    return pytest.mark.parametrize("store", sources, indirect=True, ids=names)


@each_of(*ORDINARY, *IN_ROCKSDB, *MEMBERS)
def test_exactly_what_was_pending_is_found(store: RealStore) -> None:
    backlog = read_backlog(store.root, after_crash=store.is_crashed)
    rows = zip(
        backlog.level.tolist(),
        backlog.queue_offset.tolist(),
        backlog.commit_log_offset.tolist(),
        strict=True,
    )
    file_bytes = store.commit_log_file_bytes
    found = Counter(
        (level, at, record.effective["UNIQ_KEY"], record.effective["REAL_TOPIC"])
        for level, at, offset in rows
        for record in [record_at(store.log_at(offset), file_bytes, offset)]
    )
    assert found == Counter(
        (line.level, line.delay_queue_offset, line.unique_key, line.topic)
        for line in store.pending_in_levels()
    )
    assert backlog.damaged_places == ()


@each_of(*ORDINARY, *IN_ROCKSDB, *MEMBERS, *ELSEWHERE)
def test_inspect_and_pending_say_the_same(store: RealStore) -> None:
    seen = inspect_store(store.root, now_ms=store.stopped_ms)
    truth = store.pending_in_levels()
    assert seen.pending == len(truth)
    assert seen.clean is not store.is_crashed
    assert ("consume queues are in RocksDB" in seen.evidence) is is_in_rocksdb(store)
    listed = list(pending_messages(store.root, now_ms=store.stopped_ms))
    assert Counter(
        (each.level, each.unique_key, each.topic) for each in listed if isinstance(each, Pending)
    ) == Counter((line.level, line.unique_key, line.topic) for line in truth)
    assert len(listed) == len(truth)


@pytest.mark.check
@each_of(*ORDINARY, *IN_ROCKSDB, *ONE_OF_EACH, *ELSEWHERE)
def test_a_real_store_is_converted_to_the_truth_and_verified(
    store: RealStore, tmp_path: Path
) -> None:
    options = ConvertOptions(
        source=store.root,
        target=tmp_path / "target",
        now_ms=store.stopped_ms,
        after_crash=store.is_crashed,
        settings=SMALL_FILES,
    )
    assert_is_the_truth(store, options, convert(options))
    assert verify(store.root, options.target, spark=None).is_clean
    assert {line.topic for line in store.pending_in_levels()} <= set(read_topics(options.target))
    assert FIXTURE_GROUP in read_groups(options.target)


@pytest.mark.check
@each_of(*ORDINARY, *IN_ROCKSDB, *ONE_OF_EACH, *ELSEWHERE)
def test_check_reads_a_real_store(store: RealStore) -> None:
    report = check_store(store.root, CheckOptions(now_ms=store.stopped_ms, disk_used=0.1))
    codes = {finding.code for finding in report.findings}
    assert [f.code for f in report.findings if f.severity.value == "error"] == []
    assert ("queues-in-rocksdb" in codes) is is_in_rocksdb(store)
    assert ("queues-not-flushed" in codes) is (store.name in (ROCKSDB_55_CRASH, ROCKSDB_55_BEHIND))


@each_of((ROCKSDB_55_CRASH, ""), (DLEDGER_49_UPGRADED, "n0"))
def test_pending_messages_are_exported(store: RealStore, tmp_path: Path) -> None:
    options = TableOptions(now_ms=store.stopped_ms, after_crash=store.is_crashed)
    report = export_parquet(store.root, tmp_path / "out.parquet", options=options)
    assert (report.exported, report.unreadable) == (len(store.pending_in_levels()), 0)


@pytest.mark.spark
@pytest.mark.check
@each_of((ROCKSDB_55_CLEAN, ""), (DLEDGER_55_CLEAN, "n0"))
def test_a_store_is_a_table_in_spark(store: RealStore, spark: SparkSession) -> None:
    table = spark.read.format("rocketmq_levels").load(str(store.root))
    assert table.where("problem is null").count() == len(store.pending_in_levels())


# --- wheels: their timers are read, their levels converted ----------------------------------------


@each_of(*((name, "") for name in WHEELS_551))
def test_what_waits_in_a_wheel_and_in_levels_is_listed_and_exported(
    store: RealStore, tmp_path: Path
) -> None:
    wanted = Counter((e.unique_key, e.topic, e.tags, e.level, e.body_sha1) for e in store.pending)
    timers = sum(line.level is None for line in store.pending)
    assert 900 < timers < wanted.total()
    seen = inspect_store(store.root, now_ms=store.stopped_ms)
    assert seen.wheel is not None
    assert (seen.wheel.pending, seen.pending) == (timers, wanted.total())
    listed = list(pending_messages(store.root, now_ms=store.stopped_ms))
    assert Counter(
        (each.unique_key, each.topic, each.tags, each.level)
        for each in listed
        if isinstance(each, Pending)
    ) == Counter(line[:4] for line in wanted.elements())
    assert len(listed) == wanted.total()
    out = tmp_path / "out.parquet"
    options = TableOptions(now_ms=store.stopped_ms, include_body=True)
    assert export_parquet(store.root, out, options=options).unreadable == 0
    columns = ("unique_key", "topic", "tags", "level", "body", "sys_flag")
    rows = zip(*(pq.read_table(out)[name].to_pylist() for name in columns), strict=True)
    assert Counter((*row[:4], sha1_of(*row[4:])) for row in rows) == wanted


def sha1_of(body: bytes, sys_flag: int) -> str:
    """Of a body as it was sent: its client may have packed it."""
    return hashlib.sha1(zlib.decompress(body) if sys_flag & 1 else body).hexdigest()


@each_of(*((name, "") for name in WHEELS_551))
def test_of_a_store_with_a_used_wheel_the_levels_alone_are_converted(
    store: RealStore, tmp_path: Path
) -> None:
    options = ConvertOptions(
        source=store.root,
        target=tmp_path / "target",
        now_ms=store.stopped_ms,
        settings=SMALL_FILES,
    )
    with pytest.raises(WheelNotEmptyError, match="--levels-only converts the levels alone"):
        convert(options)
    options = attrs.evolve(options, levels_only=True)
    assert_is_the_truth(store, options, convert(options))
    assert verify(store.root, options.target, spark=None).is_clean


@each_of(*((name, "") for name in WHEELS_551))
def test_timers_become_a_new_wheel_as_a_table(store: RealStore, tmp_path: Path) -> None:
    """The way out for those that no conversion takes; here without Spark."""
    options = TableOptions(now_ms=store.stopped_ms, include_body=True, precision_ms=1_000)

    def timers_of(root: Path) -> pa.Table:
        rows = pending_rows(root, WHEEL, options)
        batches = pending_batches(StoreRoot(root), WHEEL, rows, options)
        return pa.Table.from_batches(batches, options.schema)

    table = timers_of(store.root)
    run = WriteRun(tmp_path / "wheel", "run", store.stopped_ms, SMALL_FILES)
    begin_write(run, overwrite=False)
    commit_rows(run, [stage_rows(run, 0, iter(table.to_batches()))], overwrite=False)
    same = [name for name in table.schema.names if name not in STORED_ANEW]
    before, after = (each.select(same).to_pylist() for each in (table, timers_of(run.target)))
    assert sorted(before, key=repr) == sorted(after, key=repr)
    assert len(before) == sum(line.level is None for line in store.pending)


@pytest.mark.check
@each_of(*((name, "") for name in WHEELS_551))
def test_check_finds_no_error_in_a_wheel(store: RealStore) -> None:
    report = check_store(store.root, CheckOptions(now_ms=store.stopped_ms, disk_used=0.1))
    assert [f.code for f in report.findings if f.severity.value == "error"] == []
