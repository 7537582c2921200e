# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a race on the virtual clock, and when: chosen, or drawn from a seed."""

import ctypes
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

import attrs
import numpy as np

from message_store.base.clock import SystemClock, stopwatch_s
from message_store.base.durations import DAY_MS, DURATION_FORMS, DURATION_PATTERN, parse_duration
from message_store.base.errors import BadFieldError

_PATIENCE_S = 20
_PR_SET_PDEATHSIG = 1


def run_until_killed(work: Callable[[], object], call: int) -> None:
    """Do ``work`` in a fork that dies at the ``call``-th function it enters, or at its end.

    A fork has no threads but this one: should it wait for another, it is killed where it waits.
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        clock, started = SystemClock(), stopwatch_s()
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if stopwatch_s() - started > _PATIENCE_S:
                os.kill(child, signal.SIGKILL)
            clock.sleep_ms(1)
        return
    end_with(parent)
    left = call

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        if event == "call":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.setprofile(count)
        work()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    """From here on every write to a file is refused."""
    _most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


def make_room() -> None:
    """Writes go through again."""
    _most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


RESTART, KILL, REBOOT = "restart", "kill", "reboot"
KILL_INSIDE, DISK_FULL = "kill-inside", "disk-full"
CLOCK_BACK, CLOCK_FORWARD = "clock-back", "clock-forward"
KINDS = (RESTART, KILL, REBOOT, KILL_INSIDE, CLOCK_BACK, CLOCK_FORWARD, DISK_FULL)
_CALLS_INSIDE = 3_000
_LASTING_NOTHING = (RESTART, KILL, REBOOT, KILL_INSIDE)
_LATEST_DAYS, _LONGEST_DAYS = 3_650, 365

_FORM = re.compile(rf"([a-z-]+)@({DURATION_PATTERN})(?:\+({DURATION_PATTERN}))?")


@attrs.frozen
class Fault:
    """One thing that goes wrong ``at_ms`` after the race's beginning.

    ``length_ms`` is how far the clock leaps, or how long the disk stays full. A kill inside waits
    for the next delivery, and falls into its middle.
    """

    kind: str = attrs.field(validator=attrs.validators.in_(KINDS))
    at_ms: int
    length_ms: int = 60_000

    @property
    def call(self) -> int:
        """Which function call within a delivery is the last; another one for every fault."""
        return int(np.random.default_rng(self.at_ms).integers(1, _CALLS_INSIDE))

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """``kill@10m``, ``clock-back@10m+1h``, ``disk-full@5m+30s``: what, when, how long (1m).

        Raises BadFieldError for anything else.

        >>> Fault.parse("clock-back@90s+1h")
        Fault(kind='clock-back', at_ms=90000, length_ms=3600000)
        """
        match = _FORM.fullmatch(text)
        if match is None or match[1] not in KINDS:
            kinds = ", ".join(KINDS)
            expected = f"one of {kinds}, then @ and when, {DURATION_FORMS}; kill@10m, for example"
            raise BadFieldError("no fault", expected=expected, found=repr(text))
        at_ms = parse_duration(match[2])
        if at_ms > _LATEST_DAYS * DAY_MS:
            expected = f"at most {_LATEST_DAYS:,} days after the beginning"
            raise BadFieldError("a fault too late", expected=expected, found=repr(text))
        if match[3] is None:
            return cls(match[1], at_ms)
        if match[1] in _LASTING_NOTHING:
            expected = f"{match[1]}@{match[2]}: it is over at once"
            raise BadFieldError(
                f"a {match[1].partition('-')[0]} does not last", expected=expected, found=repr(text)
            )
        length_ms = parse_duration(match[3])
        if not 0 < length_ms <= _LONGEST_DAYS * DAY_MS:
            expected = f"a leap or a full disk of 1ms to {_LONGEST_DAYS}d"
            raise BadFieldError(
                "a fault without a sensible length", expected=expected, found=repr(text)
            )
        return cls(match[1], at_ms, length_ms)


def random_faults(
    count: int, seed: int, span_ms: int, kinds: Sequence[str] = KINDS
) -> tuple[Fault, ...]:
    """Random faults within the span, a leap or full disk of up to a minute; alike for one seed."""
    rng = np.random.default_rng(seed)
    drawn = [
        Fault(
            kind=kinds[int(rng.integers(len(kinds)))],
            at_ms=int(rng.integers(max(1, span_ms))),
            length_ms=int(rng.integers(1_000, 60_001)),
        )
        for _ in range(count)
    ]
    return tuple(sorted(drawn, key=lambda fault: fault.at_ms))


def end_with(parent: int) -> None:
    """Have the system kill this process when its parent, of that process id, has ended; at once
    where that is so already. Only Linux can; elsewhere nothing is done.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
