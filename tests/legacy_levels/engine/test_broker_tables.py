# SPDX-License-Identifier: Apache-2.0
"""What delayOffset.json says in a broker's way costs no message when the safe rules take over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from legacy_levels import LevelRules, LevelStore
from legacy_levels.backlog.backlog import read_backlog
from legacy_levels.engine import delivery
from message_store import AtLevel
from message_store.base.errors import OptionsError, TargetError
from message_store.format.dialect import Dialect
from tests.legacy_levels.level_stores import Bench, message

LONG_TOPIC = "%RETRY%" + "g" * 150
"""A 4.9 broker cannot store it."""

DELIVERY = [pytest.param(False, id="sync"), pytest.param(True, id="async")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def later(bench: Bench, steps: int = 20) -> list[bytes]:
    """What the safe rules deliver from the store, as a 5.x one."""
    with bench.open(dialect=Dialect.ROCKETMQ_5_5) as store:
        return sorted(body for _ in range(steps) for body in bench.advance(store, 1000))


@pytest.mark.parametrize("is_async", DELIVERY)
def test_a_message_that_a_broker_holds_back_is_delivered_by_the_next(
    bench: Bench, is_async: bool
) -> None:
    with bench.open(dialect=Dialect.ROCKETMQ_5_5) as store:
        store.schedule(message(1, LONG_TOPIC), AtLevel(1))
        store.schedule(message(2), AtLevel(1))
        store.schedule(message(3), AtLevel(3))
    rules = LevelRules.of_broker("4.9.7", async_delivery=is_async)
    with bench.open(dialect=Dialect.ROCKETMQ_4_9, rules=rules) as store:
        came = [body for _ in range(5) for body in bench.advance(store, 1000)]
        store.flush()
        came += [body for _ in range(10) for body in bench.advance(store, 1000)]
    assert read_backlog(bench.root).queue_offset.tolist() == [0]
    assert sorted([*came, *later(bench)]) == [b"body 1", b"body 2", b"body 3"]


def work(bench: Bench, store: LevelStore) -> list[bytes]:
    """The first put fails again and again, while what comes after it is not due."""
    store.schedule(message(1), AtLevel(1))
    store.schedule(message(3), AtLevel(3))
    came = [body for _ in range(2) for body in bench.advance(store, 300)]
    store.schedule(message(2), AtLevel(1))
    for number in range(40):
        came += bench.advance(store, 300)
        if number == 4:
            store.flush()
    store.schedule(message(4), AtLevel(1))
    return came + bench.advance(store, 300)


def test_a_put_that_failed_is_delivered_by_the_safe_rules(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real = delivery.redeliver  # type: ignore[attr-defined]

        def refuse(live: Any, offsets: Any, *more: Any, **options: Any) -> Any:
            if 0 in list(offsets):
                raise TargetError("no room")
            return real(live, offsets, *more, **options)

        patch.setattr(delivery, "redeliver", refuse)
        rules = LevelRules.of_broker("5.5.0", async_delivery=True)
        with bench.open(dialect=Dialect.ROCKETMQ_5_5, rules=rules) as store:
            came = work(bench, store)
    everything = [b"body 1", b"body 2", b"body 3", b"body 4"]
    assert sorted([*came, *later(bench)]) == everything


@pytest.mark.parametrize("missing", [{"out_of_turn": "wait"}, {"beyond_level": "deliver"}, {}])
def test_a_brokers_table_without_a_brokers_turns_is_refused(missing: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match="needs out_of_turn='wait'"):
        LevelRules(saved_offsets="broker", **missing)
