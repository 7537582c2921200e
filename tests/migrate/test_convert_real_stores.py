# SPDX-License-Identifier: Apache-2.0
"""What real brokers left behind, converted: exactly what the truth says was waiting, nothing
else.
"""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from message_store.base.errors import OptionsError
from migrate.convert import convert
from migrate.settings import ConvertOptions, TargetSettings
from migrate.verify.verify import verify
from tests.independent.real_stores import (
    LEVEL_STORES,
    LEVELS_49_CLEAN,
    LEVELS_49_CRASH,
    LEVELS_49_DEFAULT_SIZES,
    LEVELS_55_CLEAN,
    RealStore,
    unpack,
)
from tests.migrate.conversions import (
    SMALL_FILES,
    assert_is_the_truth,
    checked_target,
    disk_bytes,
)

REPEATED = {LEVELS_49_CRASH: 206}


@pytest.fixture(scope="module", params=LEVEL_STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealStore:
    return unpack(request.param, tmp_path_factory.mktemp("real"))


def options_of(
    store: RealStore, target: Path, settings: TargetSettings = SMALL_FILES, **more: Any
) -> ConvertOptions:
    return ConvertOptions(
        source=store.root,
        target=target,
        now_ms=store.stopped_ms,
        after_crash=store.is_crashed,
        settings=settings,
        **more,
    )


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(TargetSettings(), id="usual"),
        pytest.param(SMALL_FILES, id="small", marks=pytest.mark.check),
    ],
)
def test_a_real_backlog_is_converted_to_the_truth(
    store: RealStore, settings: TargetSettings, tmp_path: Path
) -> None:
    options = options_of(store, tmp_path / "target", settings)
    report = convert(options)
    assert_is_the_truth(store, options, report)
    assert report.total("already_delivered") == REPEATED.get(store.name, 0)
    assert report.total("expired") == report.total("quarantined") == report.total("skipped") == 0
    assert report.open_before_ms is not None
    assert report.open_before_ms > store.stopped_ms
    logs = {path.stat().st_size for path in (options.target / "commitlog").iterdir()}
    assert logs == {settings.commit_log_file_bytes}
    # Files of the usual sizes are holes but for what they hold.
    assert disk_bytes(options.target) < report.bytes_written + (2 << 20)


def test_the_source_is_as_it_was(store: RealStore, tmp_path: Path) -> None:
    def picture() -> list[tuple[str, int, int]]:
        paths = sorted(store.root.rglob("*"))
        return [(str(p), p.stat().st_ctime_ns, p.stat().st_size) for p in paths]

    before = picture()
    convert(options_of(store, tmp_path / "target", SMALL_FILES))
    assert picture() == before


@pytest.mark.parametrize("precision_ms", [100, 500])
def test_a_real_backlog_on_a_finer_wheel(tmp_path: Path, precision_ms: int) -> None:
    store = unpack(LEVELS_49_DEFAULT_SIZES, tmp_path / "source")
    settings = attrs.evolve(SMALL_FILES, precision_ms=precision_ms)
    options = options_of(store, tmp_path / "target", settings)
    assert_is_the_truth(store, options, convert(options))


def test_only_some_levels_leave_the_others_skipped(tmp_path: Path) -> None:
    store = unpack(LEVELS_55_CLEAN, tmp_path / "source")
    chosen = sorted({line.level for line in store.pending_in_levels() if line.level})[-2:]
    options = options_of(store, tmp_path / "target", only_levels=chosen)
    report = convert(options)
    for level in report.levels:
        assert (level.converted if level.level in chosen else level.skipped) == level.pending
        assert (level.skipped if level.level in chosen else level.converted) == 0
    checked_target(options)


def test_only_some_topics_leave_the_others_skipped(tmp_path: Path) -> None:
    store = unpack(LEVELS_49_CLEAN, tmp_path / "source")
    topic = store.pending_in_levels()[0].topic
    options = options_of(store, tmp_path / "target", only_topics=[topic])
    report = convert(options)
    wanted = sum(line.topic == topic for line in store.pending_in_levels())
    assert 0 < wanted < report.total("pending")
    assert report.total("converted") == wanted
    assert report.total("skipped") == report.total("pending") - wanted
    assert {message.topic for message in checked_target(options)} == {topic}
    others = Counter(line.topic for line in store.pending_in_levels() if line.topic != topic)
    assert report.left_out_topics == dict(others)


def test_a_level_that_the_store_does_not_have_is_refused(tmp_path: Path) -> None:
    store = unpack(LEVELS_49_DEFAULT_SIZES, tmp_path / "source")
    with pytest.raises(OptionsError, match="no queue of level 40"):
        convert(options_of(store, tmp_path / "target", only_levels=[40]))


@pytest.mark.check
def test_a_lost_queue_is_noticed_and_the_whole_log_brings_its_messages_back(tmp_path: Path) -> None:
    store = unpack(LEVELS_49_CLEAN, tmp_path / "source")
    lost = sum(line.level == 10 for line in store.pending_in_levels())
    shutil.rmtree(store.root / "consumequeue/SCHEDULE_TOPIC_XXXX/9")
    without = options_of(store, tmp_path / "without")
    convert(without)
    assert verify(store.root, without.target, spark=None).missing == lost > 0
    options = options_of(store, tmp_path / "target", whole_log=True)
    assert convert(options).total("converted") == len(store.pending_in_levels())
    assert verify(store.root, options.target, spark=None).is_clean
    checked_target(options)


def test_a_topic_that_nothing_waits_for_is_refused_with_those_that_do(tmp_path: Path) -> None:
    store = unpack(LEVELS_49_DEFAULT_SIZES, tmp_path / "source")
    with pytest.raises(OptionsError, match=r"(?s)nothing waits for topic nosuch.*OrderTimeout"):
        convert(options_of(store, tmp_path / "target", only_topics=["nosuch"]))
