# SPDX-License-Identifier: Apache-2.0
"""A level store that cannot be opened stays as it was, to the byte; its own table opens it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legacy_levels import LevelRules
from message_store import AtLevel, DelayLevels
from message_store.base.errors import DelayStoreError, OptionsError
from tests.legacy_levels.level_stores import LOG_FILE_BYTES, SMALL, Bench, message

OWN = DelayLevels.parse("3m 7m 1h")
OTHERS = [
    DelayLevels.parse(),
    DelayLevels.parse("3m 8m 1h"),
    DelayLevels.parse("3m"),
    DelayLevels.parse("1s 7m 1h 2h"),
]


def _bytes_below(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def _queue_file(bench: Bench, level: int) -> Path:
    return bench.root / f"consumequeue/SCHEDULE_TOPIC_XXXX/{level - 1}/00000000000000000000"


def _closed(bench: Bench) -> None:
    with bench.open(levels=OWN) as store:
        for number in range(9):
            store.schedule(message(number), AtLevel(1 + number % 3))


def _killed(bench: Bench) -> None:
    _closed(bench)
    store = bench.open(levels=OWN)
    for number in range(9, 18):
        store.schedule(message(number), AtLevel(1 + number % 3))
    store.abandon()


def _lost_power(bench: Bench) -> None:
    """The log is on disk, and the last entries of the first level are not."""
    _killed(bench)
    with _queue_file(bench, 1).open("r+b") as file:
        file.seek(20 * 3)
        file.write(bytes(20 * 3))


def _lost_power_behind_what_was_delivered(bench: Bench) -> None:
    with bench.open(levels=OWN) as store:
        for number in range(3):
            store.schedule(message(number), AtLevel(1))
        assert len(bench.advance(store, 180_000)) == 3
    store = bench.open(levels=OWN)
    store.schedule(message(3), AtLevel(1))
    store.abandon()
    with _queue_file(bench, 1).open("r+b") as file:
        file.seek(20 * 3)
        file.write(bytes(20))


def _queue_made_by_4_9_after_a_crash(bench: Bench) -> None:
    """Tag hashes in the place of due times."""
    _closed(bench)
    with _queue_file(bench, 1).open("r+b") as file:
        for place in range(3):
            file.seek(20 * place + 12)
            file.write(bytes(8))


def _lost_queue(bench: Bench) -> None:
    _closed(bench)
    shutil.rmtree(_queue_file(bench, 1).parent)


STORES: list[Callable[[Bench], None]] = [
    _closed,
    _killed,
    _lost_power,
    _lost_power_behind_what_was_delivered,
    _queue_made_by_4_9_after_a_crash,
    _lost_queue,
]


@pytest.mark.parametrize("table", OTHERS, ids=DelayLevels.text)
@pytest.mark.parametrize("make", STORES)
def test_a_store_of_another_level_table_stays_as_it_was(
    tmp_path: Path, make: Callable[[Bench], None], table: DelayLevels
) -> None:
    bench = Bench(tmp_path / "store")
    make(bench)
    if _cannot_be_told(bench, make, table):
        pytest.skip("nothing in the store tells the two tables apart")
    before = _bytes_below(bench.root)
    with pytest.raises(OptionsError, match="another level table"):
        bench.open(levels=table)
    assert _bytes_below(bench.root) == before
    with bench.open(levels=OWN) as store:
        waiting = list(store.pending())
        assert waiting
        for each in waiting:
            assert each.level is not None
            assert (each.due_ms - bench.clock.now_ms()) == OWN.delay_ms(each.level)


def _cannot_be_told(bench: Bench, make: Callable[[Bench], None], table: DelayLevels) -> bool:
    if make is _queue_made_by_4_9_after_a_crash:  # its first level shows no delay
        return table.delays_ms[1:3] == OWN.delays_ms[1:]
    is_first_alone = not _queue_file(bench, 2).exists()
    return is_first_alone and table.delay_ms(1) == OWN.delay_ms(1)


def _torn_offsets(bench: Bench) -> dict[str, Any]:
    shutil.rmtree(bench.root / "delaywheel")
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (bench.root / "config" / name).write_bytes(b'{"offsetTable":{1')
    return {}


def _no_offsets_in_the_file_chosen(bench: Bench) -> dict[str, Any]:
    (bench.root / "config/delayOffset.json.bak").unlink(missing_ok=True)
    return {"offsets": "bak"}


def _damaged_log(bench: Bench) -> dict[str, Any]:
    """Zeros at the beginning of a log that goes on behind them."""
    path = bench.root / "commitlog/00000000000000000000"
    text = path.read_bytes()
    path.write_bytes(bytes(100) + text[100:])
    return {}


def _log_files_of_two_sizes(bench: Bench) -> dict[str, Any]:
    (bench.root / "commitlog" / f"{LOG_FILE_BYTES:020}").write_bytes(bytes(LOG_FILE_BYTES * 2))
    return {}


def _queue_files_of_two_sizes(bench: Bench) -> dict[str, Any]:
    _queue_file(bench, 2).write_bytes(_queue_file(bench, 2).read_bytes() * 2)
    return {}


@pytest.mark.parametrize("make", [_closed, _killed])
@pytest.mark.parametrize(
    "damage",
    [
        _torn_offsets,
        _no_offsets_in_the_file_chosen,
        _damaged_log,
        _log_files_of_two_sizes,
        _queue_files_of_two_sizes,
    ],
)
def test_a_store_that_is_refused_for_its_damage_stays_as_it_was(
    tmp_path: Path, make: Callable[[Bench], None], damage: Callable[[Bench], dict[str, Any]]
) -> None:
    bench = Bench(tmp_path / "store")
    make(bench)
    options = damage(bench)
    if damage is _damaged_log:
        if make is _closed:
            pytest.skip("the beginning of a log that was closed is not read at opening")
        checkpoint = bench.root / "checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:16] + bytes(checkpoint.stat().st_size - 16))
    before = _bytes_below(bench.root)
    with pytest.raises(DelayStoreError):
        bench.open(levels=OWN, settings=SMALL, **options)
    assert _bytes_below(bench.root) == before


def test_a_table_that_fits_nothing_is_taken_where_messages_keep_their_due_times(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store")
    _closed(bench)
    with bench.open(rules=LevelRules(on_table_change="keep")) as store:
        assert len(bench.advance(store, 180_000)) == 3
        assert len(bench.advance(store, 3_600_000)) == 6
