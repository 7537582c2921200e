# SPDX-License-Identifier: Apache-2.0
"""Stores whose log or queues lie outside the root, in one place or in several. They become the
bytes that they become with all parts in the root. Real ones are in ``test_real_sources``.
"""

import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from legacy_levels.backlog.backlog import read_backlog
from message_store.base.errors import (
    OptionsError,
    SourceError,
    TargetError,
    UnsupportedStoreError,
)
from message_store.base.parallel import parallel_map
from message_store.files.places import UNDER_THE_ROOT, Places, placed
from message_store.files.store_root import StoreRoot
from migrate.convert import convert
from migrate.in_place.convert import convert_in_place
from migrate.plain.plain import make_plain
from migrate.settings import read_broker_conf
from migrate.source.places import GivenPlaces, places_in
from migrate.table.export import export_parquet
from migrate.table.pending_table import TableOptions
from migrate.verify.verify import verify
from tests.helpers.log_places import broker_conf, scatter
from tests.independent.dledger_member import make_member
from tests.independent.level_store_builder import T0
from tests.independent.raw_files import segments
from tests.migrate.conversions import broker_files, options_for
from tests.migrate.mixed_store import FILE_BYTES, mixed_items, pending_in
from tests.migrate.mixed_store import build as build_mixed

ITEMS = mixed_items(30)
PENDING = pending_in(ITEMS)


def build(root: Path, **more: Any) -> Path:
    return build_mixed(root, ITEMS, **more)


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


def named(root: Path, *logs: Path) -> AbstractContextManager[None]:
    return placed(root, places_in(root, {}, GivenPlaces(commit_logs=logs)))


def test_a_log_in_several_places_is_converted_to_the_same_bytes(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    ordinary = options_for(tmp_path, source=build(tmp_path / "ordinary"), target=tmp_path / "one")
    convert(ordinary)
    options = options_for(tmp_path, source=scattered, target=tmp_path / "two")
    with named(scattered, *places):
        assert convert(options).total("converted") == PENDING
        assert verify(scattered, options.target, spark=None).is_clean
    assert broker_files(options.target) == broker_files(ordinary.target)


def test_a_stopped_conversion_goes_on_with_the_places_named_again(
    tmp_path: Path, scattered: Path, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(tmp_path, source=scattered)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, named(scattered, *places):
        stopped.setattr("migrate.convert.seal", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(options)
    with pytest.raises(SourceError, match="there is no commitlog/"):
        convert(options)
    with named(scattered, *places):
        assert convert(options).total("converted") == PENDING
        assert verify(scattered, options.target, spark=None).is_clean


def test_a_dledger_log_in_two_places_is_read(tmp_path: Path, places: list[Path]) -> None:
    member = make_member(build(tmp_path / "member"))
    scatter(member.data, *places)
    with pytest.raises(UnsupportedStoreError, match="--dledger-log"):
        StoreRoot(member.root).require_readable()
    conf = broker_conf(tmp_path / "c", member.root, "storePathDLedgerCommitLog", places)
    with placed(member.root, places_in(member.root, read_broker_conf(conf))):
        backlog = read_backlog(member.root)
        assert make_plain(member.root, tmp_path / "plain").records == len(ITEMS)
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)
    assert backlog.damaged_places == ()
    assert read_backlog(tmp_path / "plain").total("pending") == PENDING


def test_plain_brings_all_parts_into_one_root(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    with named(scattered, *places):
        make_plain(scattered, tmp_path / "plain")
    assert len(segments(tmp_path / "plain" / "commitlog")) > 4
    assert read_backlog(tmp_path / "plain").total("pending") == PENDING


def test_a_crashed_store_with_its_next_file_made_in_the_other_place_is_read(
    tmp_path: Path, places: list[Path]
) -> None:
    root = build(tmp_path / "store", abort=True, offsets={3: 0})
    count = len(segments(root / "commitlog"))
    scatter(root / "commitlog", *places)
    (places[count % 2] / f"{count * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    options = options_for(tmp_path, source=root, after_crash=True)
    with named(root, *places):
        backlog = read_backlog(root, after_crash=True)
        assert convert(options).total("converted") == PENDING
    assert (backlog.total("pending"), backlog.total("already_delivered")) == (PENDING, 1)


def test_pending_messages_of_several_places_are_exported(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    options = TableOptions(now_ms=T0)
    with named(scattered, *places):
        assert (
            export_parquet(scattered, tmp_path / "o.parquet", options=options).exported == PENDING
        )
        with pytest.raises(TargetError, match="lies in the store"):
            export_parquet(scattered, places[1] / "o.parquet", options=options)


@pytest.mark.spark
@pytest.mark.check
def test_workers_of_spark_know_the_places(
    tmp_path: Path, scattered: Path, places: list[Path], spark: SparkSession
) -> None:
    options = options_for(tmp_path, source=scattered)
    with named(scattered, *places):
        assert convert(options, spark=spark).total("converted") == PENDING
        assert verify(scattered, options.target, spark=spark).is_clean
    conf = broker_conf(tmp_path / "c", scattered, "storePathCommitLog", places)
    reader = spark.read.format("rocketmq_levels").option("brokerConf", str(conf))
    assert reader.load(str(scattered)).where("problem is null").count() == PENDING


# --- damage ---------------------------------------------------------------------------------------


def refusal(root: Path, *logs: Path) -> str:
    with named(root, *logs), pytest.raises(SourceError) as refused:
        StoreRoot(root).require_readable()
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
    with named(scattered, *places, third):
        StoreRoot(scattered).require_readable()  # the log begins at 0: nothing can be before it
    (places[0] / f"{0:020d}").rename(tmp_path / "deleted")
    assert "is its disk mounted?" in refusal(scattered, *places, third)
    StoreRoot(scattered, Places(commit_logs=tuple(places))).require_readable()


def test_a_file_that_lies_in_two_places_is_refused(scattered: Path, places: list[Path]) -> None:
    name = f"{FILE_BYTES:020d}"
    shutil.copy(places[1] / name, places[0] / name)
    assert "has the same name" in refusal(scattered, *places)


def test_a_store_with_parts_elsewhere_is_not_changed_in_place(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    options = options_for(tmp_path, source=scattered)
    refused = pytest.raises(UnsupportedStoreError, match="a part of the store in another place")
    with named(scattered, *places), refused:
        convert_in_place(options, execute=True)


def test_a_target_within_a_part_of_the_source_is_refused(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    options = options_for(tmp_path, source=scattered, target=places[0] / "target")
    refused = pytest.raises(TargetError, match="must not lie in the source")
    with named(scattered, *places), refused:
        convert(options)


# --- what is named, and by whom -------------------------------------------------------------------


def test_a_link_out_of_the_root_is_followed_if_somebody_names_it(tmp_path: Path) -> None:
    root = build(tmp_path / "store")
    elsewhere = tmp_path / "queues"
    (root / "consumequeue").rename(elsewhere)
    (root / "consumequeue").symlink_to(elsewhere)
    with pytest.raises(SourceError, match="leads outside the store"):
        StoreRoot(root).require_readable()
    with placed(root, places_in(root, {"storePathConsumeQueue": str(elsewhere)})):
        StoreRoot(root).require_readable()
        assert read_backlog(root).total("pending") == PENDING
    (root / "consumequeue").unlink()
    with placed(root, places_in(root, {}, GivenPlaces(consume_queues=elsewhere))):
        StoreRoot(root).require_readable()
        assert read_backlog(root).total("pending") == PENDING


def test_a_copy_has_its_log_where_the_copied_store_has_it(tmp_path: Path) -> None:
    root = build(tmp_path / "copy")
    conf = {"storePathRootDir": "/data/store", "storePathCommitLog": "/data/store/commitlog"}
    assert places_in(root, conf).commit_logs == ()
    (root / "commitlog").rename(root / "log")
    places = places_in(root, {**conf, "storePathCommitLog": "/data/store/log"})
    assert places.commit_logs == (root / "log",)
    StoreRoot(root, places).require_readable()
    with pytest.raises(OptionsError, match="the configuration is that of the store /data/store"):
        places_in(root, {**conf, "storePathCommitLog": "/logs/a,/logs/b"})


def test_of_two_logs_the_stores_own_is_not_chosen_silently(
    tmp_path: Path, scattered: Path, places: list[Path]
) -> None:
    root = build(tmp_path / "other")
    with pytest.raises(OptionsError, match="has a log, and the configuration names"):
        places_in(root, {"storePathCommitLog": str(places[0])})
    both = ",".join([str(root / "commitlog"), str(places[0])])
    assert len(places_in(root, {"storePathCommitLog": both}).commit_logs) == 2
    assert places_in(root, {}) == UNDER_THE_ROOT


def test_threads_that_name_other_places_of_one_store_do_not_share_them(
    scattered: Path, places: list[Path]
) -> None:
    def pending_when(order: list[Path]) -> tuple[int, Path]:
        with named(scattered, *order):
            inner = parallel_map(lambda _: StoreRoot(scattered).commit_log, range(4))
            assert len(set(inner)) == 1
            return read_backlog(scattered).total("pending"), inner[0]

    orders = [places, places[::-1]] * 4
    answers = parallel_map(pending_when, orders)
    assert answers == [(PENDING, order[0]) for order in orders]
    assert StoreRoot(scattered).places == UNDER_THE_ROOT


def test_read_only_places_count_beside_a_list_as_for_a_broker(tmp_path: Path) -> None:
    root = tmp_path / "store"
    read_only = {"readOnlyCommitLogStorePaths": "/old/a,/logs/b"}
    logs = places_in(root, {"storePathCommitLog": "/logs/a,/logs/b", **read_only}).commit_logs
    assert logs == (Path("/logs/a"), Path("/logs/b"), Path("/old/a"))
    logs = places_in(root, {"storePathCommitLog": "/logs/a", **read_only}).commit_logs
    assert logs == (Path("/logs/a"),)


def test_a_place_is_one_under_all_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    os.symlink(tmp_path / "log", tmp_path / "link")
    given = GivenPlaces(commit_logs=(tmp_path / "link", tmp_path / "log"))
    places = places_in(tmp_path / "store", {}, given)
    assert places.commit_logs == (tmp_path / "link",)
    assert isinstance(places, Places)
