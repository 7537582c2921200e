# SPDX-License-Identifier: Apache-2.0
"""Stores whose log or queues lie outside the root, in one place or in several: 4.9.7's are read
as the truth says, hand-made ones become the bytes that they become with all parts in the root.
"""

import os
import shutil
from collections import Counter
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import (
    OptionsError,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.files.places import UNDER_THE_ROOT, Places, places_of
from message_store.files.store_root import StoreRoot
from message_store.interface.delay_store import Pending
from migrate.check.snapshot import CheckOptions
from migrate.check.store import check_store
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.look.inspect import inspect_store
from migrate.look.pending import pending_messages
from migrate.plain.plain import make_plain
from migrate.settings import ConvertOptions, TargetSettings, read_broker_conf
from migrate.source.places import GivenPlaces, name_source
from migrate.table.export import export_parquet
from migrate.table.pending_table import TableOptions
from migrate.verify.verify import verify
from tests.helpers.log_places import broker_conf, scatter
from tests.independent.dledger_member import make_member
from tests.independent.level_messages import DeliveredCopy, Item, LevelMessage, OrdinaryMessage
from tests.independent.level_store_builder import T0, build_level_store
from tests.independent.raw_files import segments
from tests.independent.real_stores import LOG_ELSEWHERE_49, TWO_LOGS_49, RealStore, unpack
from tests.migrate.conversions import broker_files, options_for

SMALL_FILES = TargetSettings(
    commit_log_file_bytes=1 << 20, queue_file_bytes=2000 * 20, timer_log_file_bytes=50_000
)
FILE_BYTES = 4096
FIRST = LevelMessage(level=3, body=b"first")
ITEMS: list[Item] = [
    FIRST,
    LevelMessage(level=5, body=b"x" * 700),
    OrdinaryMessage(body=b"y" * 900),
    DeliveredCopy(of=FIRST),
    *(
        LevelMessage(level=4 + n % 3, body=b"%d" % n * 300, store_timestamp_ms=T0 + 10_010 + n)
        for n in range(30)
    ),
]
PENDING = sum(isinstance(item, LevelMessage) for item in ITEMS) - 1


# --- what real brokers left -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=[TWO_LOGS_49, LOG_ELSEWHERE_49])
def real_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RealStore:
    """The store below the directory that was unpacked, its places named by its broker.conf."""
    whole = unpack(request.param, tmp_path_factory.mktemp("places") / "here")
    conf = whole.root / "broker.conf"
    conf.write_text(conf.read_text("utf-8").replace("@DIR@", str(whole.root)), "utf-8")
    store = attrs.evolve(whole, root=whole.root / "store")
    name_source(store.root, read_broker_conf(conf))
    return store


def test_what_a_real_broker_left_in_its_paths_is_pending(real_store: RealStore) -> None:
    listed = list(pending_messages(real_store.root, now_ms=real_store.stopped_ms))
    truth = real_store.pending_in_levels()
    assert Counter(
        (each.level, each.unique_key, each.topic) for each in listed if isinstance(each, Pending)
    ) == Counter((line.level, line.unique_key, line.topic) for line in truth)
    seen = inspect_store(real_store.root, now_ms=real_store.stopped_ms)
    assert (seen.pending, seen.clean) == (len(truth), True)
    options = CheckOptions(now_ms=real_store.stopped_ms)
    findings = check_store(real_store.root, options).findings
    assert [each.code for each in findings if each.severity.value == "error"] == []


def test_a_real_store_of_several_paths_is_converted_to_the_truth(
    real_store: RealStore, tmp_path: Path
) -> None:
    options = ConvertOptions(
        source=real_store.root,
        target=tmp_path / "target",
        now_ms=real_store.stopped_ms,
        settings=SMALL_FILES,
    )
    report = convert(options)
    assert report.total("converted") == len(real_store.pending_in_levels())
    assert verify(real_store.root, options.target, spark=None).is_clean


# --- hand-made ------------------------------------------------------------------------------------


def build(root: Path, **more: object) -> Path:
    build_level_store(root, ITEMS, commit_log_file_bytes=FILE_BYTES, **more)  # type: ignore[arg-type]
    return root


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-a", tmp_path / "disk-b"]


@pytest.fixture
def scattered(tmp_path: Path, places: list[Path]) -> Path:
    """A store whose log lies in two places, which are not named yet."""
    root = build(tmp_path / "store")
    assert len(segments(root / "commitlog")) > 4
    scatter(root / "commitlog", *places)
    return root


def named(root: Path, *logs: Path) -> Path:
    name_source(root, {}, GivenPlaces(commit_logs=logs))
    return root


def test_a_log_in_several_places_is_converted_to_the_same_bytes(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    ordinary = options_for(tmp_path, source=build(tmp_path / "ordinary"), target=tmp_path / "one")
    convert(ordinary)
    source = named(scattered, *places)
    options = options_for(tmp_path, source=source, target=tmp_path / "two")
    assert convert(options).total("converted") == PENDING
    assert broker_files(options.target) == broker_files(ordinary.target)
    assert verify(source, options.target, spark=None).is_clean


def test_a_stopped_conversion_goes_on_with_the_places_named_again(
    tmp_path: Path, scattered: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(tmp_path, source=named(scattered, *places))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr("migrate.convert.seal", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(options)
    name_source(scattered, {})
    with pytest.raises(SourceError, match="there is no commitlog/"):
        convert(options)
    assert convert(attrs.evolve(options, source=named(scattered, *places))).total("converted") == (
        PENDING
    )
    assert verify(scattered, options.target, spark=None).is_clean


def test_a_dledger_log_in_two_places_is_read(tmp_path: Path, places: list[Path]) -> None:
    member = make_member(build(tmp_path / "member"))
    scatter(member.data, *places)
    with pytest.raises(UnsupportedStoreError, match="--dledger-log"):
        StoreRoot(member.root).require_readable()
    conf = broker_conf(tmp_path / "c", member.root, "storePathDLedgerCommitLog", places)
    name_source(member.root, read_broker_conf(conf))
    backlog = read_backlog(member.root)
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)
    assert backlog.damaged_places == ()
    assert make_plain(member.root, tmp_path / "plain").records == len(ITEMS)
    assert read_backlog(tmp_path / "plain").total("pending") == PENDING


def test_plain_brings_all_parts_into_one_root(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    make_plain(named(scattered, *places), tmp_path / "plain")
    assert len(segments(tmp_path / "plain" / "commitlog")) > 4
    assert read_backlog(tmp_path / "plain").total("pending") == PENDING


def test_a_crashed_store_with_its_next_file_made_in_the_other_place_is_read(
    tmp_path: Path, places: list[Path]
) -> None:
    root = build(tmp_path / "store", abort=True, offsets={3: 0})
    count = len(segments(root / "commitlog"))
    scatter(root / "commitlog", *places)
    (places[count % 2] / f"{count * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    backlog = read_backlog(named(root, *places), after_crash=True)
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)
    options = options_for(tmp_path, source=root, after_crash=True)
    assert convert(options).total("converted") == PENDING


def test_pending_messages_of_several_places_are_exported(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    source, out = named(scattered, *places), tmp_path / "out.parquet"
    assert export_parquet(source, out, options=TableOptions(now_ms=T0)).exported == PENDING
    with pytest.raises(TargetError, match="lies in the store"):
        export_parquet(source, places[1] / "out.parquet", options=TableOptions(now_ms=T0))


@pytest.mark.spark
@pytest.mark.check
def test_workers_of_spark_know_the_places(
    tmp_path: Path, scattered: Path, places: list[Path], spark: SparkSession
) -> None:
    options = options_for(tmp_path, source=named(scattered, *places))
    assert convert(options, spark=spark).total("converted") == PENDING
    assert verify(scattered, options.target, spark=spark).is_clean
    name_source(scattered, {})
    conf = broker_conf(tmp_path / "c", scattered, "storePathCommitLog", places)
    reader = spark.read.format("rocketmq_levels").option("brokerConf", str(conf))
    assert reader.load(str(scattered)).where("problem is null").count() == PENDING


# --- damage ---------------------------------------------------------------------------------------


def refusal(root: Path, *logs: Path) -> str:
    with pytest.raises(SourceError) as refused:
        StoreRoot(named(root, *logs)).require_readable()
    return str(refused.value)


def test_a_place_that_nobody_named_is_missed(scattered: Path, places: list[Path]) -> None:
    assert f"there is no {FILE_BYTES:020d}" in refusal(scattered, places[0])


def test_a_file_that_is_in_no_place_is_missed(scattered: Path, places: list[Path]) -> None:
    (places[0] / f"{2 * FILE_BYTES:020d}").unlink()
    assert f"there is no {2 * FILE_BYTES:020d}" in refusal(scattered, *places)


def test_a_place_whose_disk_is_not_there_is_noticed(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    third = tmp_path / "disk-c"
    name_source(scattered, {}, GivenPlaces(commit_logs=(*places, third)))
    StoreRoot(scattered).require_readable()  # the log begins at 0: nothing can be in front of it
    (places[0] / f"{0:020d}").rename(tmp_path / "deleted")
    assert "is its disk mounted?" in refusal(scattered, *places, third)
    name_source(scattered, {}, GivenPlaces(commit_logs=tuple(places)))
    StoreRoot(scattered).require_readable()


def test_a_file_that_lies_in_two_places_is_refused(scattered: Path, places: list[Path]) -> None:
    name = f"{FILE_BYTES:020d}"
    shutil.copy(places[1] / name, places[0] / name)
    assert "has the same name" in refusal(scattered, *places)


def test_a_store_with_parts_elsewhere_is_not_changed_in_place(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    with pytest.raises(UnsupportedStoreError, match="a part of the store in another place"):
        convert_in_place(options_for(tmp_path, source=named(scattered, *places)), execute=True)


def test_a_target_within_a_part_of_the_source_is_refused(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    source = named(scattered, *places)
    with pytest.raises(TargetError, match="must not lie in the source"):
        convert(options_for(tmp_path, source=source, target=places[0] / "target"))


# --- what is named, and by whom -------------------------------------------------------------------


def test_a_link_out_of_the_root_is_followed_if_somebody_names_it(tmp_path: Path) -> None:
    root = build(tmp_path / "store")
    elsewhere = tmp_path / "queues"
    (root / "consumequeue").rename(elsewhere)
    (root / "consumequeue").symlink_to(elsewhere)
    with pytest.raises(SourceError, match="leads outside the store"):
        StoreRoot(root).require_readable()
    name_source(root, {"storePathConsumeQueue": str(elsewhere)})
    StoreRoot(root).require_readable()
    assert read_backlog(root).total("pending") == PENDING
    (root / "consumequeue").unlink()
    name_source(root, {}, GivenPlaces(consume_queues=elsewhere))
    StoreRoot(root).require_readable()
    assert read_backlog(root).total("pending") == PENDING


def test_a_copy_has_its_log_where_the_copied_store_has_it(tmp_path: Path) -> None:
    root = build(tmp_path / "copy")
    conf = {"storePathRootDir": "/data/store", "storePathCommitLog": "/data/store/commitlog"}
    assert name_source(root, conf).commit_logs == ()
    (root / "commitlog").rename(root / "log")
    assert name_source(root, {**conf, "storePathCommitLog": "/data/store/log"}).commit_logs == (
        root / "log",
    )
    StoreRoot(root).require_readable()
    with pytest.raises(OptionsError, match="the configuration is that of the store /data/store"):
        name_source(root, {**conf, "storePathCommitLog": "/logs/a,/logs/b"})


def test_of_two_logs_the_stores_own_is_not_chosen_silently(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    root = build(tmp_path / "other")
    with pytest.raises(OptionsError, match="has a log, and the configuration names"):
        name_source(root, {"storePathCommitLog": str(places[0])})
    both = ",".join([str(root / "commitlog"), str(places[0])])
    assert len(name_source(root, {"storePathCommitLog": both}).commit_logs) == 2
    name_source(root, {})
    assert places_of(root) == UNDER_THE_ROOT


def test_read_only_places_count_beside_a_list_as_for_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "store"
    read_only = {"readOnlyCommitLogStorePaths": "/old/a,/logs/b"}
    logs = name_source(root, {"storePathCommitLog": "/logs/a,/logs/b", **read_only}).commit_logs
    assert logs == (Path("/logs/a"), Path("/logs/b"), Path("/old/a"))
    logs = name_source(root, {"storePathCommitLog": "/logs/a", **read_only}).commit_logs
    assert logs == (Path("/logs/a"),)


def test_a_place_is_one_under_all_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    os.symlink(tmp_path / "log", tmp_path / "link")
    given = GivenPlaces(commit_logs=(tmp_path / "link", tmp_path / "log"))
    places = name_source(tmp_path / "store", {}, given)
    assert places.commit_logs == (tmp_path / "link",)
    assert isinstance(places, Places)
