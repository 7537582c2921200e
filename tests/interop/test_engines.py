# SPDX-License-Identifier: Apache-2.0
"""Our engines and brokers own a store by turns: what one takes, another delivers, once, in time.

`LevelStore` and `WheelStore` with two versions each, and then with two others; three changes of
owner, clean and by SIGKILL of whoever owns it. Four stores change hands at the same time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.interop.conftest import MakeBroker, Tell
from tests.interop.jars import LAST, NEWEST
from tests.interop.relay import Plan, Relay, lost_its_marker
from tests.interop.relay_runner import Runner

TOGETHER: Final = (
    (("levels", "4.9.7"), ("levels", NEWEST), ("wheel", "5.3.3"), ("wheel", NEWEST)),
    (("levels", "5.4.0"), ("levels", LAST), ("wheel", "5.4.0"), ("wheel", LAST)),
)
"""The engines and versions of four stores that change hands at the same time."""
OWNERS: Final = 4


def run_all(plans: list[Plan], scratch: Path, make_broker: MakeBroker) -> Sequence[Relay]:
    with ThreadPoolExecutor(len(plans)) as pool:
        runners = [Runner(plan, scratch, make_broker) for plan in plans]
        return list(pool.map(Runner.run, runners))


@pytest.fixture(scope="module")
def handed_over(scratch: Path, make_broker: MakeBroker) -> Mapping[str, Relay]:
    plans = [Plan(engine, NEWEST, owners=2, next_s=15, far_s=25) for engine in ("levels", "wheel")]
    return {each.plan.engine: each for each in run_all(plans, scratch / "once", make_broker)}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (engines, killed),
            id=f"{engines[1][1]} and others, {'killed' if killed else 'stopped'}",
            marks=pytest.mark.interop(*sorted({version for _engine, version in engines})),
        )
        for engines in TOGETHER
        for killed in (False, True)
    ],
)
def relays(
    request: pytest.FixtureRequest, scratch: Path, make_broker: MakeBroker
) -> Sequence[Relay]:
    engines, killed = request.param
    plans = [Plan(name, version, killed, OWNERS) for name, version in engines]
    return run_all(plans, scratch, make_broker)


@pytest.fixture(params=range(4))
def relay(request: pytest.FixtureRequest, relays: Sequence[Relay]) -> Relay:
    """One of the four."""
    number: int = request.param
    return relays[number]


@pytest.mark.check
@pytest.mark.interop(NEWEST)
@pytest.mark.parametrize("engine", ["levels", "wheel"])
def test_a_broker_goes_on_with_what_an_engine_left(
    engine: str, handed_over: Mapping[str, Relay], tell: Tell
) -> None:
    relay = handed_over[engine]
    tell(f"{relay.plan.name}, delivered by (sender, deliverer): {relay.delivered()}")
    assert relay.account().faults == {}
    assert len(relay.taken_back) > 5
    assert relay.wrongly_refused() == []
    # On a busy machine a broker rolls late, and then recalls nothing that it rolled.
    assert [each for each in relay.came_back() if not lost_its_marker(each)] == []
    assert relay.delivered()[0, 0] > 0
    assert relay.delivered()[0, 1] > 0


@pytest.mark.nightly
def test_nothing_is_lost_early_or_changed_by_three_changes_of_owner(
    relay: Relay, tell: Tell
) -> None:
    repeats = Counter(relay.tenure_of(later.stored_ms) for _earlier, later in relay.repeats())
    tell(
        f"{relay.plan.name}, delivered by (sender, deliverer): {relay.delivered()},"
        f" taken back {len(relay.taken_back)}, repeated by {dict(repeats)}"
    )
    faults = relay.account().faults
    faults.pop("repeated", None)
    assert faults == {}


@pytest.mark.nightly
def test_what_one_side_takes_the_other_delivers(relay: Relay) -> None:
    rolled = [each for each in relay.received if "TIMER_ROLL_TIMES" in each.properties]
    assert bool(rolled) == (relay.plan.engine == "wheel")
    delivered = relay.delivered()
    by_the_next = [(sender, sender + 1) for sender in range(OWNERS - 1)]
    assert [pair for pair in by_the_next if not delivered.get(pair)] == []


@pytest.mark.nightly
def test_what_was_taken_back_never_comes(relay: Relay, tell: Tell) -> None:
    assert relay.wrongly_refused() == []
    by_sender_and_taker = {
        (sender, relay.taken_back[each.unique_key])
        for sender, sent in enumerate(relay.sent)
        for each in sent
        if each.unique_key in relay.taken_back
    }
    # An engine takes back its own and a broker's; a broker knows that only on the wheel.
    wanted = {(0, 0), (1, 2), (2, 2)} | (
        {(0, 1), (1, 1)} if relay.plan.engine == "wheel" else set()
    )
    assert wanted <= by_sender_and_taker
    came = relay.came_back()
    if came:
        tell(f"{relay.plan.name}, taken back and overdue when a broker was to roll it: {len(came)}")
    assert [each for each in came if not lost_its_marker(each)] == []
    assert len(came) < len(relay.taken_back) / 2


@pytest.mark.nightly
def test_only_a_broker_repeats_and_only_what_it_would_repeat_after_its_own_kill(
    relay: Relay,
) -> None:
    repeats = relay.repeats()
    if not relay.plan.killed:
        assert repeats == []
    last_ms = [
        max(each.stored_ms for each in relay.received if relay.tenure_of(each.stored_ms) == turn)
        for turn in range(OWNERS)
    ]
    for earlier, later in repeats:
        turn = relay.tenure_of(earlier.stored_ms)
        assert relay.tenure_of(later.stored_ms) == turn + 1
        assert not relay.tenures[turn + 1].is_ours
        assert last_ms[turn] - earlier.stored_ms <= relay.plan.forgotten_ms
