# SPDX-License-Identifier: Apache-2.0
"""The workloads that are made up: the fixed levels, random times, a burst, a steady stream.

The same recipe gives the same messages.
"""

import math
from collections.abc import Callable

import attrs
import numpy as np

from compare.workloads.workload import NUMBER_BYTES, Workload
from message_store.base.errors import BadFieldError
from message_store.columns.byte_column import Int64s
from message_store.format.delay_levels import DelayLevels

START_MS = 1_793_000_000_000
"""When a made-up workload begins, unless it is shifted."""
SECOND_MS = 1_000
TDMQ_RATE = 1_000.0
LONGEST_DAYS = 3_650
"""A race lasts at most so long: a little less than engines keep what they have delivered."""
LONGEST_MS = LONGEST_DAYS * 86_400_000
_LEVELS_MS = np.array(DelayLevels.parse().delays_ms, np.int64)


@attrs.frozen(kw_only=True)
class Recipe:
    """What to make. No rate: all arrive at once. No delay: that of the workload's own kind."""

    messages: int = 100_000
    rate_per_second: float | None = None
    body_bytes: int = 1_024
    topics: int = 4
    seed: int = 1
    delay_min_ms: int | None = None
    delay_max_ms: int | None = None


def levels(recipe: Recipe, rng: np.random.Generator) -> Workload:
    """Each message asks for one of the 18 levels."""
    arrival_ms = _arrivals(recipe)
    level = rng.integers(1, len(_LEVELS_MS) + 1, recipe.messages)
    return _made("levels", recipe, arrival_ms, arrival_ms + _LEVELS_MS[level - 1], level)


def uniform(recipe: Recipe, rng: np.random.Generator) -> Workload:
    """Random times, by default one second to two hours ahead."""
    arrival_ms = _arrivals(recipe)
    delays = _random_delays(recipe, rng, SECOND_MS, int(_LEVELS_MS.max()))
    return _made("uniform", recipe, arrival_ms, arrival_ms + delays)


def burst(recipe: Recipe, rng: np.random.Generator) -> Workload:
    """Everything is due in the second that ends so long after the first arrival: a minute by
    default, longer where the messages take longer to arrive.
    """
    arrival_ms = _arrivals(recipe)
    last_arrival_ms = int(arrival_ms.max(initial=START_MS))
    end_ms = START_MS + (60_000 if recipe.delay_max_ms is None else recipe.delay_max_ms)
    end_ms = max(end_ms, last_arrival_ms + SECOND_MS)
    return _made("burst", recipe, arrival_ms, end_ms - rng.integers(0, SECOND_MS, recipe.messages))


def tdmq(recipe: Recipe, rng: np.random.Generator) -> Workload:
    """A steady stream, each message due a random 30 s to 10 minutes later: a published test."""
    steady = attrs.evolve(recipe, rate_per_second=recipe.rate_per_second or TDMQ_RATE)
    arrival_ms = _arrivals(steady)
    delays = _random_delays(recipe, rng, 30_000, 600_000)
    return _made("tdmq", steady, arrival_ms, arrival_ms + delays)


MADE_UP: dict[str, Callable[[Recipe, np.random.Generator], Workload]] = {
    "levels": levels,
    "uniform": uniform,
    "burst": burst,
    "tdmq": tdmq,
}


def make_workload(name: str, recipe: Recipe) -> Workload:
    """One of MADE_UP. Raises BadFieldError for a recipe that makes no sense."""
    if recipe.body_bytes < NUMBER_BYTES:
        expected = f"at least the {NUMBER_BYTES} bytes of a message's number"
        raise BadFieldError("bodies too short", expected=expected, found=recipe.body_bytes)
    _require_sensible_times(recipe)
    return MADE_UP[name](recipe, np.random.default_rng(recipe.seed))


def _require_sensible_times(recipe: Recipe) -> None:
    """Raise BadFieldError where messages would arrive or be due after many years, or at no time."""
    rate = recipe.rate_per_second
    if rate is not None:
        if not (math.isfinite(rate) and rate > 0):
            raise BadFieldError("no rate of arrivals", expected="messages a second", found=rate)
        if recipe.messages - 1 > rate * (LONGEST_MS / SECOND_MS):
            expected = f"all of {recipe.messages:,} messages within {LONGEST_DAYS:,} days"
            raise BadFieldError("a rate too slow", expected=expected, found=f"{rate:g} a second")
    longest_ms = max(recipe.delay_min_ms or 0, recipe.delay_max_ms or 0)
    if longest_ms > LONGEST_MS:
        expected = f"at most {LONGEST_DAYS:,} days"
        found = f"{longest_ms // 86_400_000:,} days"
        raise BadFieldError("delays too long", expected=expected, found=found)


def _arrivals(recipe: Recipe) -> Int64s:
    numbers = np.arange(recipe.messages, dtype=np.int64)
    if recipe.rate_per_second is None:
        return np.full(recipe.messages, START_MS, np.int64)
    return START_MS + (numbers * (SECOND_MS / recipe.rate_per_second)).astype(np.int64)


def _random_delays(
    recipe: Recipe, rng: np.random.Generator, least_ms: int, longest_ms: int
) -> Int64s:
    first = least_ms if recipe.delay_min_ms is None else recipe.delay_min_ms
    last = max(first, longest_ms) if recipe.delay_max_ms is None else recipe.delay_max_ms
    if last < first:
        raise BadFieldError("delays that end before they begin", found=f"{first} to {last} ms")
    return rng.integers(first, last + 1, recipe.messages)


def _made(
    name: str, recipe: Recipe, arrival_ms: Int64s, due_ms: Int64s, level: Int64s | None = None
) -> Workload:
    count = recipe.messages
    return Workload(
        name=name,
        start_ms=START_MS,
        arrival_ms=arrival_ms,
        due_ms=due_ms,
        level=np.zeros(count, np.int64) if level is None else level,
        topic=np.arange(count) % recipe.topics,
        body_bytes=np.full(count, recipe.body_bytes),
        topics=tuple(f"race-{number}" for number in range(recipe.topics)),
        seed=recipe.seed,
        rate_per_second=recipe.rate_per_second,
    )
