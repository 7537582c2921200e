# SPDX-License-Identifier: Apache-2.0
"""What happens to a store of an engine, step by step; faults strike some of the steps.

A scenario is a list of steps. After each of them the same invariants hold, so that any other list
of steps is a scenario too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from message_store.writing.settings import StoreSettings
from tests.simulation.bench import START_MS, Action, Bench, Setup

ENGINES = ("levels", "wheel", "hierarchy", "time-index")
OTHERS = ("levels", "wheel", "hierarchy")
WHEELS = ("wheel", "hierarchy")

SIX_UNITS_A_FILE = StoreSettings(
    commit_log_file_bytes=16 << 10, queue_file_bytes=50 * 20, timer_log_file_bytes=6 * 52 + 30
)
FAITHFUL = attrs.evolve(SIX_UNITS_A_FILE, repeat_after_kill=True)
SHORT_RETENTION = attrs.evolve(SIX_UNITS_A_FILE, commit_log_file_bytes=8 << 10, retention_ms=60_000)


@attrs.frozen
class Step:
    """One thing that is done; whether a fault may strike it."""

    name: str
    do: Action = attrs.field(repr=False)
    is_struck: bool = False


def put(name: str, delay_ms: int, times: int = 1, body_bytes: int = 0) -> Step:
    """Equal messages, due so long after now: before it where that is negative."""

    def do(bench: Bench) -> None:
        for _ in range(times):
            bench.schedule(name, bench.clock.now_ms() + delay_ms, body_bytes)

    return Step(f"put {name} {delay_ms} ms, {times} times", do)


def put_at(name: str, due_ms: int) -> Step:
    """A message that is due at this time after the beginning."""
    return Step(f"put {name} at {due_ms} ms", lambda bench: bench.schedule(name, START_MS + due_ms))


def batch(name: str, delays_ms: Sequence[int], body_bytes: int = 0) -> Step:
    """Different messages at once."""

    def do(bench: Bench) -> None:
        names = [f"{name}{number}" for number in range(len(delays_ms))]
        dues_ms = [bench.clock.now_ms() + delay_ms for delay_ms in delays_ms]
        bench.batch(names, dues_ms, body_bytes)

    return Step(f"batch {name} of {len(delays_ms)}", do)


def cancel(name: str) -> Step:
    """Take the message of a name back."""
    return Step(f"cancel {name}", lambda bench: bench.cancel(name))


def tick(step_ms: int) -> Step:
    """Time passes, or the clock is set back."""
    return Step(f"tick {step_ms} ms", lambda bench: bench.clock.tick(step_ms))


def advance(ahead_ms: int = 0) -> Step:
    """Deliver what is due, by a clock that may be ahead."""
    return Step(f"advance {ahead_ms} ms ahead", lambda bench: bench.advance(ahead_ms))


def reopen(**changes: Any) -> Step:
    """Open what was closed or killed; otherwise than before, where so wanted."""

    def do(bench: Bench) -> None:
        bench.setup = attrs.evolve(bench.setup, **changes)
        bench.open()

    return Step(f"open {changes or ''}".rstrip(), do)


OPEN = reopen()
FLUSH = Step("flush", Bench.flush)
CLOSE = Step("close", Bench.close)
KILL = Step("kill", Bench.kill)
FLUSH_IF_OPEN = Step("flush, if it is open", lambda bench: bench.flush_if_open())
LOOK = Step("look", lambda bench: bench.look())


def struck(*steps: Step) -> list[Step]:
    """These steps, as those that a fault strikes."""
    return [attrs.evolve(step, is_struck=True) for step in steps]


def perhaps(rng: random.Random, *steps: Step) -> list[Step]:
    """These steps or none: another seed, another history."""
    return list(steps) if rng.random() < 0.5 else []


# --- the scenarios --------------------------------------------------------------------------------


def close(rng: random.Random) -> list[Step]:
    """An orderly end: on a wheel, messages in the middle of a slot and on top of it have come."""
    stored = [
        put(name, -START_MS if is_overdue else 700)
        for name, is_overdue in zip("XAXYBXY", (1, 0, 1, 1, 0, 1, 1), strict=True)
    ]
    later = perhaps(rng, put("C", 300_000), cancel("C"), put("LATER", 5_000, 2))
    return [OPEN, tick(100), *stored, *later, CLOSE, OPEN, advance(), *struck(CLOSE)]


def flush(rng: random.Random) -> list[Step]:
    """What was placed by a clock that was ahead is on the disk; then the hand moved back."""
    return [
        OPEN,
        *(advance(101_000), FLUSH, tick(-98_000)),
        *(put("NEAR", 1_000), advance(), put("FAR", 126_000), advance()),
        *perhaps(rng, put("TWIN", 61_000, 2), tick(2_500), advance(), cancel("FAR")),
        *struck(FLUSH),
        *perhaps(rng, put("LAST", 3_000), KILL),
    ]


def move_back(rng: random.Random) -> list[Step]:
    """The hand moves back for what was scheduled last: equal messages."""
    last = rng.choice([advance(), CLOSE])
    begin = [OPEN, put("CAME", 50_000), *perhaps(rng, put("CAME", 49_000), FLUSH)]
    return [*begin, advance(100_000), put("WAITS", 20_000, 2), *struck(last, FLUSH_IF_OPEN)]


def advance_far(rng: random.Random) -> list[Step]:
    """Many messages become due at once, equal ones among them."""
    names = [f"K{number // 2}" if number % 5 else "TWIN" for number in range(24)]
    stored = [put(name, 5_000 * number + 1) for number, name in enumerate(names)]
    return [
        *(OPEN, *stored, advance(12_000), put("BACK", 60_000), cancel("BACK")),
        *(batch("ROW", [rng.randrange(90_000) for _ in range(20)], 300),),
        *perhaps(rng, FLUSH),
        *(tick(70_300), put("LATE", -70_000)),
        *struck(advance()),
        *struck(*perhaps(rng, tick(30_000), advance())),
    ]


def faithful(rng: random.Random) -> list[Step]:
    """A turn of a store that repeats after a kill: what was taken back before it never comes."""
    delay_ms = rng.choice([1_000, -1_500])
    again = perhaps(rng, CLOSE, OPEN)
    begin = [OPEN, put("BACK", delay_ms), *again, cancel("BACK"), put("COMES", delay_ms)]
    return [*begin, put("FAR", 50_000), tick(2_000), *struck(advance())]


def out_of_turn(rng: random.Random) -> list[Step]:
    """Of equal messages one was delivered out of turn, by a clock that was set back since."""
    begin = [OPEN, put("TWIN", 1_000), FLUSH, put("TWIN", -1), tick(60_000), advance(-60_000)]
    return [*begin, *struck(*rng.choice([[FLUSH], [advance(-70_000), FLUSH]]))]


def recovery(rng: random.Random) -> list[Step]:
    """The opening of a store that was killed: some of it was flushed, and more came."""
    first = [put(f"A{number}", 50_000 + number * 700) for number in range(6)]
    more = [put(f"B{number}", 40_000 - number * 900) for number in range(rng.randint(2, 6))]
    return [
        *(OPEN, *first, put("TWIN", 100_000, 2), advance(), *perhaps(rng, FLUSH)),
        *(put("A6", 50_000), cancel("A2"), advance(), *more, put("TWIN", 3_000)),
        *(tick(5_000), advance(), put("C", 1_000), cancel("B0"), batch("ROW", [9_000] * 9, 500)),
        *perhaps(rng, advance(45_000), tick(44_000)),
        *(KILL, *struck(OPEN)),
    ]


def roll(rng: random.Random) -> list[Step]:
    """Messages that are farther away than the wheel looks go another round; on a hierarchical one
    they move to a finer wheel.
    """
    far_ms = rng.choice([100_000, 7_300_000])
    begin = [OPEN, put("FAR", far_ms), put("TWIN", 256_000), put("NEAR", 5_000), advance()]
    twin = [*perhaps(rng, FLUSH), put("TWIN", 256_000), advance(), put("BACK", far_ms)]
    turn = [tick(61_000), advance(), cancel("BACK"), tick(60_000), advance(), tick(5_000), FLUSH]
    return [*begin, *twin, *struck(*turn)]


def retention(rng: random.Random) -> list[Step]:
    """Log files go while some of what they held waits, and some was delivered."""
    return [OPEN, put("FAR", 7_000_000), *_rounds(rng, [500, 11_000, 40_000, 99_000])]


def retention_of_index(rng: random.Random) -> list[Step]:
    """The same within the retention: a delay beyond it is refused."""
    return [OPEN, put("FAR", 60_000), *_rounds(rng, [500, 11_000, 40_000, 60_000])]


def _rounds(rng: random.Random, choice_ms: Sequence[int]) -> list[Step]:
    """Messages with these delays, time and deliveries, again and again."""

    def round_of(number: int) -> list[Step]:
        delays_ms = [rng.choice(choice_ms) for _ in range(8)]
        # Who says nothing for long leaves retention nothing that is on the disk elsewhere.
        flushes = [FLUSH] if number % 7 == 0 else []
        return [batch(f"ROUND{number}-", delays_ms, 150), *flushes, tick(10_000), advance()]

    before = [step for number in range(12) for step in round_of(number)]
    behind = [step for number in range(12, 16) for step in round_of(number)]
    return [*before, *struck(*behind)]


def precision_change(rng: random.Random) -> list[Step]:
    """A store is opened with slots of another width."""
    # To finer slots a wheel is not changed while messages are to roll.
    old_ms, new_ms = rng.choice([(100, 1_000), (500, 1_000), (200, 500)])
    delays_ms = [150, 1_000, 1_001, 2_345, 59_999, 3_600_000, 7_200_000]
    stored = [put(f"K{delay_ms}", delay_ms) for delay_ms in delays_ms]
    return [
        *(reopen(precision_ms=old_ms), advance(), *stored, put("TWIN", 70_000, 2)),
        *(put("BACK", 80_000), cancel("BACK")),
        *(put("SAME", 80_000), put("SAME", 80_000 + old_ms), cancel("SAME")),
        *(tick(400), advance(), CLOSE),
        *struck(Step(f"open with {new_ms} ms", lambda bench: bench.reopen_with(new_ms))),
    ]


def change_of_hands(rng: random.Random) -> list[Step]:
    """A wheel whose slots got another width becomes a hierarchical wheel, whose index is lost then,
    or that a wheel again.
    """
    dues_ms = [1_500, 1_700, 2_345, 59_999, 3_600_000]
    stored = [put(f"K{due_ms}", due_ms) for due_ms in dues_ms]
    wide = reopen(precision_ms=1_000)
    fine = reopen(engine="hierarchy", precision_ms=None, loses_index=True)
    back = reopen(engine="wheel", precision_ms=None)
    begin = [
        *(reopen(engine="wheel", precision_ms=100, is_for_brokers=False), advance(), *stored),
        *(put("BACK", 9_150), put("SAME", 9_150), CLOSE, wide, cancel("BACK")),
        *(put("SAME", 8_500), put("TWIN", 9_000, 2), cancel("K1500"), tick(2_600), advance()),
    ]
    if rng.random() < 0.5:
        return [*begin, rng.choice([CLOSE, KILL]), *struck(fine, cancel("K59999"), CLOSE)]
    middle = [CLOSE, fine, put("FINE", 9_437), put("OFF", 9_437), cancel("OFF"), tick(1_000)]
    return [*begin, *middle, advance(), rng.choice([CLOSE, KILL]), *struck(back, CLOSE)]


def intake(rng: random.Random) -> list[Step]:
    """Messages come one by one and many at once, over several files, and some are taken back."""
    many = [rng.randrange(200_000) for _ in range(60)]
    return [
        *(OPEN, put("FIRST", 20_000, 2), put("BACK", 30_000), *perhaps(rng, FLUSH, advance())),
        *struck(put("ONE", 10_000, 1, 3_000), batch("ROW", many, 300), cancel("BACK")),
        *struck(put("TWIN", 30_000, 3, 700), cancel("ROW7"), batch("LAST", many[:3], 3_900)),
        *struck(advance()),
    ]


def work(rng: random.Random) -> list[Step]:
    """Anything, in any order."""
    steps: list[Step] = [OPEN]
    free: list[str] = []
    for number in range(36):
        delay_ms = rng.choice([-2_000, 0, 1, 900, 5_000, 20_000, 70_000, 127_000, 256_000])
        kind = rng.choices(["put", "twin", "batch", "cancel", "time", "flush", "end", "look"],
                           [8, 4, 2, 3, 9, 2, 1, 1])[0]  # fmt: skip
        if kind == "put":
            free.append(f"K{number}")
            steps.append(put(free[-1], delay_ms, 1, rng.choice([0, 50, 400, 3_000])))
        elif kind == "twin":
            steps.append(put("TWIN", delay_ms, rng.choice([1, 2, 3])))
        elif kind == "batch":
            delays_ms = [max(0, delay_ms) + 900 * row for row in range(rng.choice([2, 10, 40]))]
            steps.append(batch(f"ROW{number}-", delays_ms, rng.choice([0, 200])))
        elif kind == "cancel" and free:
            steps.append(cancel(free.pop(rng.randrange(len(free)))))
        elif kind == "time":
            steps += [tick(rng.choice([0, 300, 1_000, 5_000, 20_000, 61_000])), advance()]
        elif kind == "end":
            steps += [rng.choice([KILL, CLOSE]), OPEN]
        else:
            steps.append(LOOK if kind == "look" else FLUSH)
    middle = len(steps) // 2
    return [*steps[:middle], *struck(*steps[middle:])]


@attrs.frozen
class EngineScenario:
    """Steps by seed, the engines that take them, and how these are set."""

    steps: Callable[[random.Random], list[Step]]
    engines: Sequence[str] = ENGINES
    settings: StoreSettings = SIX_UNITS_A_FILE

    def setup(self, engine: str) -> Setup:
        """How the engine is opened."""
        return Setup(engine, self.settings)


ENGINE_SCENARIOS = {
    "close": EngineScenario(close),
    "flush": EngineScenario(flush),
    "advance": EngineScenario(advance_far),
    "move-back": EngineScenario(move_back),
    "out-of-turn": EngineScenario(out_of_turn),
    "faithful": EngineScenario(faithful, ("levels", "wheel"), FAITHFUL),
    "recovery": EngineScenario(recovery),
    "roll": EngineScenario(roll, WHEELS),
    "retention": EngineScenario(retention, OTHERS, SHORT_RETENTION),
    "retention-of-index": EngineScenario(retention_of_index, ("time-index",), SHORT_RETENTION),
    "precision-change": EngineScenario(precision_change, WHEELS),
    "change-of-hands": EngineScenario(change_of_hands, ("hierarchy",)),
    "intake": EngineScenario(intake),
    "work": EngineScenario(work),
}
