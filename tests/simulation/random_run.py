# SPDX-License-Identifier: Apache-2.0
"""One number makes one run: an owner, its settings, what is done with the store, and what fails.

Each step has chance of its own, so that a run without some of its steps is still the same run:
that is how a long history that fails becomes a short one.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from message_store.base.errors import DelayStoreError
from tests.faults.leeway import leeway_of
from tests.simulation.account import PENDING, WIDE, Life
from tests.simulation.bench import START_MS
from tests.simulation.cases import POWER
from tests.simulation.draws import DAMAGE, ENGINES, FAULTS, KILLS, Drawn, Strike, draw_owner
from tests.simulation.harm import harm
from tests.simulation.moves import ask, cancel_all, find, reschedule
from tests.simulation.simulated_disk import Event, Failing, Killed
from tests.simulation.together import Together, ToSchedule
from tests.simulation.world import DAY_MS, FAMILIES, Owner, World, WrongError

_DELAYS_MS: Final = (
    *(-30_000, -2_000, 0, 1, 900, 1_000, 1_001, 5_000, 20_000, 61_000, 70_000),
    *(127_000, 256_000, 3_600_000, 7_200_000),
)
_LONG_DELAYS_MS: Final = (8_000_000, DAY_MS, 3 * DAY_MS, 8 * DAY_MS, 20 * DAY_MS)
_LEAPS_MS: Final = (0, 1, 300, 999, 1_000, 1_001, 5_000, 20_000, 61_000, 130_000, 600_000)
_LONG_LEAPS_MS: Final = (3_700_000, 7_300_000, DAY_MS, 8 * DAY_MS, 15 * DAY_MS)
_TO_THE_END_MS: Final = (0, 1_000, 20_000, 600_000, DAY_MS, 21 * DAY_MS)
_LETTERS: Final = "ABCDEFGH"
_CONVERTED: Final = 0.3
"""How often what a run leaves is moved to a wheel, where it could be."""


@attrs.frozen
class Outcome:
    """What became of a run: what is wrong, if anything, and everything that happened."""

    seed: int
    kind: str
    wrong: str
    struck: Counter[str]
    trace: list[str] = attrs.field(repr=False)
    events: list[Event] = attrs.field(repr=False)


class RandomRun:
    """The run of a seed, in a folder of its own; ``skipped`` steps are left out.

    A fault that was drawn waits ``patience`` steps for the change that it strikes.
    """

    patience = 4

    def __init__(
        self,
        seed: int,
        folder: Path,
        skipped: frozenset[int] = frozenset(),
        focus: str | None = None,
    ) -> None:
        self.seed, self.skipped = seed, skipped
        self.struck: Counter[str] = Counter()
        self._strike: Strike | None = None
        self._failing: Failing | None = None
        self._patience = 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        drawn = Drawn.of(seed, focus)
        self.world = World(drawn.owner, folder)
        self.count, self._looks = drawn.count, drawn.looks
        self._strikes, self._harm = drawn.strikes, drawn.harm
        self._focus, self._moves = focus, drawn.moves
        works_like_a_broker = drawn.owner.leeway.works_like_a_broker
        # A wheel forgets slots that are a week behind when a broker starts.
        self._longest_ms = DAY_MS if works_like_a_broker else _LONG_DELAYS_MS[-1] + DAY_MS

    def run(self) -> Outcome:
        """All steps, and the end."""
        self._kind = self.world.owner.engine
        wrong = ""
        self.world.say(f"{self.world.owner}, {self._strikes}")
        try:
            self._guarded(-1, lambda _rng: self.world.open(), random.Random(0))
            for number in range(self.count):
                if number not in self.skipped:
                    self._step(number)
                if (
                    self._harm is not None
                    and self._harm[0] == number
                    and not self._is_harmed_well()
                ):
                    break
            else:
                self._end()
        except WrongError as error:
            wrong = str(error)
        except Exception as error:
            error.add_note("\n".join(self.world.trace[-30:]))
            wrong = f"{type(error).__name__}: {error}"
            self.error = error
        finally:
            self.world.end()
        if wrong:
            self.world.say(f"WRONG: {wrong}")
        return Outcome(
            self.seed, self._kind, wrong, self.struck, self.world.trace, self.world.events
        )

    # --- steps and faults -------------------------------------------------------------------------

    def _step(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {number}")
        self.world.say(f"-- {number}")
        strike = self._strikes.get(number)
        if strike is not None:
            self._strike, self._failing = strike, strike.failing(rng)
            self._patience = self.patience
        actions = self._actions()
        [action] = rng.choices([each for each, _ in actions], [weight for _, weight in actions])
        self._guarded(number, action, rng)
        self._patience -= 1
        if self._patience <= 0:
            self._failing = None
        if rng.random() < self._looks:
            self._guarded(number, lambda _rng: self.world.look(), rng, is_struck=False)

    def _is_harmed_well(self) -> bool:
        """Damage the store; whether it goes on, because that was refused and mended."""
        assert self._harm is not None
        _, fault = self._harm
        rng = random.Random(f"{self.seed} harm")
        self._guarded(-3, lambda _rng: self.world.look(), rng, is_struck=False)
        if self.world.account.is_repeating:
            return True
        self.world.close() if rng.random() < 0.6 else self.world.killed()
        self.struck[fault] += 1
        goes_on = harm(self.world, fault, rng, is_even=self._focus == DAMAGE)
        if goes_on:
            self.world.open()
            self.world.look()
        return goes_on

    def _guarded(
        self,
        number: int,
        action: Callable[[random.Random], None],
        rng: random.Random,
        *,
        is_struck: bool = True,
    ) -> None:
        """Do it, and go on after what strikes it."""
        world, failing = self.world, self._failing if is_struck else None
        failed = failing.failed if failing is not None else 0
        try:
            with world.failing_at(failing):
                action(rng)
        except Killed:
            self._died(rng)
        except KeyboardInterrupt:
            world.say("  interrupted")
            self._let_go(rng)
        except DelayStoreError as error:
            if failing is None or failing.failed == failed:
                raise WrongError(f"refused without a fault: {error}") from error
            world.say(f"  refused: {error}")
            self._go_on_or_let_go(rng)
        if failing is not None and failing.failed > failed and self._strike is not None:
            world.is_stale = True
            world.account.struck()
            self.struck[self._strike.fault] += 1
            self._failing = None
        if not world.is_open:
            self._reopen(rng)

    def _go_on_or_let_go(self, rng: random.Random) -> None:
        """There is room again: a store that can be flushed goes on."""
        if self.world.is_open and rng.random() < 0.4:
            with suppress(DelayStoreError):
                self.world.flush()
                return
        self._let_go(rng)

    def _let_go(self, rng: random.Random) -> None:
        """End what was interrupted or refused something."""
        world = self.world
        world.is_stale = True
        if world.is_open and rng.random() < 0.7:
            # A store in doubt is released as after a kill (LiveStore.close).
            is_broken = world.store.live.log.is_broken  # type: ignore[attr-defined]
            with suppress(DelayStoreError):
                world.close(is_orderly=not is_broken)
        if world.is_open:
            world.killed()

    def _died(self, rng: random.Random) -> None:
        """The process is gone, and perhaps the power with it."""
        assert self._strike is not None
        self.world.say(f"  {self._strike.fault}")
        was_open = self.world.is_open
        if self._strike.fault in POWER:
            self.world.power_lost(rng, any_order=self._strike.fault == "reordered")
            self.world.look_as_a_broker(is_power_cut=True)
        else:
            self.world.killed()
            self.world.look_as_a_broker(was_open=was_open)
        self._look_beside_and_open()

    def _look_beside_and_open(self) -> None:
        self.world.look_beside_and_open()
        self._look_if_converted()

    def _look_if_converted(self) -> None:
        """Now and then, by a draw of its own: the others stay those of the seed."""
        rng = random.Random(f"convert {self.seed} {self.world.clock.now_ms()}")
        if rng.random() < _CONVERTED:
            self.world.look_if_converted(rng)

    def _reopen(self, rng: random.Random) -> None:
        """Somebody opens what was left, whom another fault may strike."""
        world = self.world
        for _ in range(2):
            if rng.random() < 0.7:
                break
            self._strike = Strike(rng.choice(FAULTS), rng.randrange(40))
            failing = self._strike.failing(rng)
            try:
                with world.failing_at(failing):
                    world.say(f"  open, {self._strike}")
                    world.open_or_go_back()
                break
            except Killed:
                self._died(rng)
            except KeyboardInterrupt:
                world.say("  interrupted")
            except DelayStoreError as error:
                world.say(f"  refused: {error}")
                if not failing.failed:
                    raise WrongError(f"refused without a fault: {error}") from error
            finally:
                world.is_stale = True
                self.struck[self._strike.fault] += int(failing.failed > 0)
        try:
            world.say("  open")
            world.open_or_go_back()
        except DelayStoreError as error:
            raise WrongError(f"refused after a fault: {error}") from error
        if rng.random() < max(0.3, self._looks):
            world.look()

    def _end(self) -> None:
        """Everything is delivered, and nothing is there that should not be."""
        world = self.world
        world.say("-- the end")
        self._failing = None
        rng = random.Random(f"{self.seed} end")

        def quiet(action: Callable[[random.Random], None]) -> None:
            self._guarded(-2, action, rng, is_struck=False)

        quiet(lambda _rng: world.look())
        for family in sorted({life.family for life in world.account.lives} | {world.owner.family}):
            for _ in range(2):  # what was stopped in a reschedule refuses once
                if family != world.owner.family:
                    quiet(partial(self._change_family, to=family))
            for step_ms in _TO_THE_END_MS:
                world.clock.tick(min(step_ms, self._longest_ms))
                for _ in range(4 if world.owner.async_delivery else 1):
                    quiet(lambda _rng: world.advance())
            quiet(lambda _rng: world.look())
            left = [life for life in world.account.lives if PENDING in life.may]
            left = [life for life in left if life.family == world.owner.family]
            if left and not world.account.is_repeating:
                raise WrongError(f"still pending: {', '.join(map(str, left))}")
        world.close()
        world.look_beside()
        world.open()
        world.look()

    # --- what may be done -------------------------------------------------------------------------

    def _actions(self) -> list[tuple[Callable[[random.Random], None], float]]:
        world, kills = self.world, self._focus == KILLS
        is_ours = not world.owner.leeway.works_like_a_broker
        actions: list[tuple[Callable[[random.Random], None], float]] = [
            (self._schedule, 12),
            (self._batch, 4),
            (world.cancel, 6),
            (self._cancel_and_schedule_again, 3),
            (self._time, 14),
            (self._stand, 2),
            (self._clock_back, 2 * is_ours),
            (self._advance_ahead, 3 * is_ours),
            (self._flush, 2 if kills else 5),
            (lambda _rng: world.look(), 2),
            (self._reopen_orderly, 3),
            (self._kill, 14 if kills else 2),
            (self._together, 10 if kills else 4),
        ]
        if world.owner.family == "timers" and is_ours:
            actions += [
                (self._change_hands, 6 if kills else 2),
                (self._change_precision, 6 if kills else 1),
            ]
        if kills:
            actions += [
                (self._twice_in_a_moment, 3),
                (self._at_once_and_back, 1),
                (self._lose_what_is_made_anew, 2),
                (lambda _rng: world.open_twice(), 1),
            ]
        if self._moves:
            actions += [(self._reschedule, 10), (self._by_key, 5), (self._change_settings, 2)]
        return [*actions, (self._change_family, 1)]

    def _flush(self, rng: random.Random) -> None:
        """Often more than once in a moment: then only the log is synced."""
        self.world.flush()
        for _ in range(rng.choice([0, 1, 1, 3])):
            do = rng.choice([self._schedule, self._schedule, self.world.cancel, self._stand])
            do(rng)
            self.world.flush()

    def _together(self, rng: random.Random) -> None:
        """Some threads at once."""
        if rng.random() < 0.5:
            self.world.clock.tick(rng.choice(_LEAPS_MS))
        together = Together(self.world, rng)
        for _ in range(rng.choice([0, 0, 1, 2])):
            together.cancel()
        for _ in range(rng.choice([0, 1, 1, 2])):
            count = rng.choice([1, 2, 5])
            names = [f"T{rng.randrange(30)}" for _ in range(count)]
            names = [each for each in names if each not in together.cancelled]
            dues_ms = [self._dues_ms(rng) for _ in names]
            together.schedule(ToSchedule(names, dues_ms, rng.random() < 0.4))
        for do, odds in (
            (together.flush, 0.7),
            (together.flush, 0.3),
            (together.advance, 0.6),
            (together.advance, 0.1),
            (together.look, 0.8 if self._focus == KILLS else 0.3),
            (together.close, 0.2),
        ):
            if rng.random() < odds:
                do()
        if self._focus == KILLS and rng.random() < 0.5:
            together.look_beside()
        together.run()
        if not self.world.is_open:
            self.world.look_beside()
            self.world.look_as_a_broker()

    def _dues_ms(self, rng: random.Random) -> int:
        """Often one that was asked for before."""
        known = self.world.account.lives
        if known and rng.random() < 0.4:
            receipt = rng.choice(known[-10:]).receipt
            if receipt is not None:
                return receipt.due_ms
        is_long = rng.random() < 0.05
        delay_ms = rng.choice(_LONG_DELAYS_MS if is_long else _DELAYS_MS)
        return self.world.clock.now_ms() + min(delay_ms, self._longest_ms)

    def _name(self, rng: random.Random) -> str:
        if self._focus == KILLS:
            return rng.choice(_LETTERS[:3])
        if self._moves and rng.random() < 0.2:
            return f"{WIDE}{rng.randrange(60)}"
        if rng.random() < 0.5:
            return rng.choice(_LETTERS)
        return f"K{rng.randrange(40)}"

    def _schedule(self, rng: random.Random) -> None:
        count = rng.choice([1, 1, 2, 5])
        name, due_ms = self._name(rng), self._dues_ms(rng)
        is_twin = rng.random() < 0.4
        names = [name if is_twin else self._name(rng) for _ in range(count)]
        dues_ms = [due_ms if is_twin else self._dues_ms(rng) for _ in range(count)]
        self.world.schedule(names, dues_ms, at_once=False)

    def _batch(self, rng: random.Random) -> None:
        count = rng.choice([2, 5, 12, 30])
        names = [self._name(rng) for _ in range(count)]
        due_ms, now_ms = self._dues_ms(rng), self.world.clock.now_ms()
        spread_ms = rng.choice([0, 0, 900, 20_000])
        dues_ms = [due_ms + rng.randint(0, spread_ms) for _ in range(count)]
        self.world.schedule(
            names, [min(each, now_ms + 7_200_000) for each in dues_ms], at_once=True
        )

    def _cancel_and_schedule_again(self, rng: random.Random) -> None:
        known: list[Life] = [
            life
            for life in self.world.account.lives
            if life.receipt is not None and life.may == {PENDING}
        ]
        self.world.cancel(rng)
        if known:
            life = rng.choice(known)
            assert life.receipt is not None
            self.world.schedule([life.name], [life.receipt.due_ms], at_once=False)

    def _reschedule(self, rng: random.Random) -> None:
        """Some messages move to another time, often one of the last ones more than once."""
        for _ in range(rng.choice([1, 1, 2, 4])):
            known = self.world.known
            if known:
                life = rng.choice(known[-6:] if rng.random() < 0.8 else known)
                by_receipt = rng.random() < 0.7
                reschedule(self.world, life, self._dues_ms(rng), by_receipt=by_receipt)

    def _by_key(self, rng: random.Random) -> None:
        known = self.world.account.lives
        name = rng.choice(known).name if known and rng.random() < 0.9 else self._name(rng)
        rng.choice([cancel_all, find, ask, ask])(self.world, name)

    def _twice_in_a_moment(self, rng: random.Random) -> None:
        """One is delivered, an equal one is taken back, and each is asked about."""
        world, name, now_ms = self.world, self._name(rng), self.world.clock.now_ms()
        world.schedule([name], [now_ms], at_once=False)
        first = world.account.lives[-1]
        if rng.random() < 0.8:
            world.advance()
        world.schedule([name], [now_ms], at_once=False)
        second = world.account.lives[-1]
        for life in rng.choice([[second, first], [second], [first, second]]):
            world.cancel_one(life, by_receipt=rng.random() < 0.7)

    def _at_once_and_back(self, rng: random.Random) -> None:
        """Due at once, and the clock is set back before anybody looks."""
        world = self.world
        world.schedule([self._name(rng)], [world.clock.now_ms() - 1], at_once=True)
        world.clock.tick(-rng.choice([130_000, 3_600_000]))
        for step_ms in (0, 61_000, 61_000):
            world.clock.tick(step_ms)
            world.advance()

    def _time(self, rng: random.Random) -> None:
        is_long = rng.random() < 0.06
        if self._focus == KILLS and rng.random() < 0.4:
            self._time_of_a_promise(rng)
            return
        leap_ms = rng.choice(_LONG_LEAPS_MS if is_long else _LEAPS_MS)
        self.world.clock.tick(min(leap_ms, self._longest_ms))
        self.world.advance()

    def _time_of_a_promise(self, rng: random.Random) -> None:
        """A millisecond before a promise, and when it is due."""
        now_ms = self.world.clock.now_ms()
        lives = self.world.account.lives
        ahead_ms = {each.early_ms - now_ms for each in lives if PENDING in each.may}
        near_ms = sorted(each for each in ahead_ms if each > 0)[:3]
        if near_ms:
            self.world.clock.tick(rng.choice(near_ms) - 1)
            self.world.advance()
            self.world.clock.tick(1)
        self.world.advance()

    def _stand(self, rng: random.Random) -> None:
        self.world.advance()
        if rng.random() < 0.5:
            self.world.advance()

    def _clock_back(self, rng: random.Random) -> None:
        self.world.clock.tick(-rng.choice([1, 1_000, 60_000, 130_000, 3_600_000]))
        if rng.random() < 0.5:
            self.world.advance()

    def _advance_ahead(self, rng: random.Random) -> None:
        self.world.advance(rng.choice([-60_000, -1_000, 999, 20_000, 130_000]))

    def _reopen_orderly(self, rng: random.Random) -> None:
        self.world.say("close and open")
        self.world.close()
        self.world.look_beside()
        self._look_if_converted()
        self.world.look_as_a_broker()
        self.world.open()

    def _kill(self, rng: random.Random) -> None:
        self.world.say("kill")
        self.world.killed()
        self._look_beside_and_open()
        self.world.look_as_a_broker()

    def _lose_what_is_made_anew(self, rng: random.Random) -> None:
        """Somebody takes files away from which no message may depend."""
        self._end_of_owner(rng)
        self.world.lose_what_is_made_anew()

    # --- other owners -----------------------------------------------------------------------------

    def _end_of_owner(self, rng: random.Random) -> None:
        self.world.killed() if rng.random() < 0.3 else self.world.close()

    def _change_hands(self, rng: random.Random) -> None:
        """A wheel becomes a hierarchical wheel, or the other way round."""
        owner = self.world.owner
        engine = "wheel" if owner.engine == "hierarchy" else "hierarchy"
        self._become(rng, attrs.evolve(owner, engine=engine, precision_ms=None))

    def _change_precision(self, rng: random.Random) -> None:
        precision_ms = rng.choice([1_000, 500, 200, 100])
        self._become(rng, attrs.evolve(self.world.owner, precision_ms=precision_ms))

    def _become(self, rng: random.Random, owner: Owner) -> None:
        """Another owner opens the store; if it is refused, the old one goes on."""
        world = self.world
        world.say(f"change to {owner.engine} with slots of {owner.precision_ms} ms")
        self._end_of_owner(rng)
        before, world.owner = world.owner, owner
        world.former_owner, world.is_ours_alone = before, False
        world.account.changed_hands(owner.family, max(owner.slot_ms, before.slot_ms, 1_000))
        world.open_or_go_back()

    def _change_settings(self, rng: random.Random) -> None:
        """The same engine is opened with other settings, all but what retention and kills do."""
        old, new = self.world.owner, draw_owner(rng)
        settings = attrs.evolve(
            new.settings,
            retention_ms=old.settings.retention_ms,
            repeat_after_kill=old.settings.repeat_after_kill,
        )
        is_async = old.engine == "levels" and rng.random() < 0.3
        self._become(
            rng,
            attrs.evolve(old, settings=settings, window_slots=new.window_slots,
                         snapshots=old.engine == "wheel" and rng.random() < 0.3,
                         async_delivery=is_async),
        )  # fmt: skip

    def _change_family(self, rng: random.Random, to: str | None = None) -> None:
        """Levels and wheels by turns, each with messages of its own."""
        family = to or ("timers" if self.world.owner.family == "levels" else "levels")
        engines = [
            engine
            for engine in FAMILIES
            if FAMILIES[engine] == family
            and leeway_of(engine).works_like_a_broker == self.world.owner.leeway.works_like_a_broker
        ]
        engine = rng.choice(engines)
        if family == "timers" and (self.world.root / "delaywheel" / "hierarchy").exists():
            engine = "hierarchy"
        # Other slots lose a broker's messages.
        works_like_a_broker = self.world.owner.leeway.works_like_a_broker
        precision_ms = self.world.owner.precision_ms if works_like_a_broker else None
        self._become(rng, attrs.evolve(self.world.owner, engine=engine, precision_ms=precision_ms))


__all__ = ["ENGINES", "START_MS", "Outcome", "RandomRun"]
