# SPDX-License-Identifier: Apache-2.0
"""The flags of ``compare``: which workload, which engines, which clock, what goes wrong."""

import math
from typing import Any

import click
from click.core import ParameterSource

from delaywheel.terminal.options.conversion import PRECISIONS, STORE, all_of, said
from delaywheel.terminal.options.types import TIME_FORMS, Duration, ParamType, Time
from message_store.base.printable import listed

BACKLOG, TRACE = "backlog", "trace"
_MADE_UP = ("levels", "uniform", "burst", "tdmq")
WORKLOADS = (*_MADE_UP, BACKLOG, TRACE)
_FOR_WORKLOADS = {
    "store": (BACKLOG,),
    "converted": (BACKLOG,),
    "trace": (TRACE,),
    "now_ms": (BACKLOG, TRACE),
    "delays": ("uniform", "burst", "tdmq"),
    "rate_per_second": _MADE_UP,
    "topics": _MADE_UP,
    "body_bytes": (*_MADE_UP, TRACE),
}
"""Flags that only some workloads know what to do with."""


_FOR_THE_VIRTUAL_CLOCK = ("tick_ms", "now_ms", "fault", "faults")
"""Flags about a time that is set by hand."""


def require_flags_that_apply(workload: str, clock: str) -> None:
    """Refuse a flag that was typed and that on this workload, or by this clock, does nothing."""
    context = click.get_current_context()
    for option in context.command.params:
        known = _FOR_WORKLOADS.get(option.name or "", WORKLOADS)
        if context.get_parameter_source(option.name or "") is not ParameterSource.COMMANDLINE:
            continue
        if clock != "virtual" and option.name in _FOR_THE_VIRTUAL_CLOCK:
            raise click.UsageError(f"{option.opts[0]} needs the virtual clock")
        if workload not in known:
            raise click.UsageError(
                f"{option.opts[0]} is for --workload {listed(known)}; {workload} has no use for it"
            )


class Count(click.IntRange):
    """A whole number within a range."""

    name = "integer"


class Rate(ParamType[float]):
    """Messages a second, above 0."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        try:
            rate = float(value)
        except ValueError:
            rate = math.nan
        if not (math.isfinite(rate) and rate > 0):
            self.fail(f"{value!r} is no number of messages a second, such as 2000", param, ctx)
        return rate


class DurationWithin(Duration):
    """A duration that is neither too short nor too long to mean anything."""

    def __init__(self, least: str, longest: str) -> None:
        self._words = f"{least} to {longest}"
        self._bounds_ms = [Duration().convert(text, None, None) for text in (least, longest)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The duration in milliseconds."""
        length_ms = super().convert(value, param, ctx)
        if not self._bounds_ms[0] <= length_ms <= self._bounds_ms[1]:
            self.fail(f"{value!r} is not within {self._words}", param, ctx)
        return length_ms


class DelayRange(ParamType[tuple[int, int]]):
    """``30s-10m``; becomes two numbers of milliseconds."""

    name = "delays"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The shortest and the longest delay."""
        if isinstance(value, tuple):
            return value
        first, _, last = value.partition("-")
        bounds = (
            Duration().convert(first, param, ctx),
            Duration().convert(last or first, param, ctx),
        )
        if bounds[0] > bounds[1]:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return bounds


class Engines(ParamType[tuple[str, ...]]):
    """``levels,wheel``; becomes a tuple of names, none of them twice."""

    name = "engines"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names in order."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in value.split(","))
        if not all(names):
            self.fail(f"{value!r} is not a list of engines such as levels,wheel", param, ctx)
        for place, name in enumerate(names):
            if name in names[:place]:
                self.fail(f"{value!r} names {name} twice; --repeat runs it again", param, ctx)
        return names


compare_options = all_of(
    said(
        "--workload",
        click.Choice(WORKLOADS),
        "uniform",
        "levels: the 18 fixed delays. uniform: random times. burst: all due in one second."
        " tdmq: a steady stream, due 30 s to 10 min later. backlog: what waits in --store."
        " trace: the arrivals and due times of --trace.",
    ),
    click.option(
        "--engines",
        type=Engines(),
        default="levels,wheel",
        show_default=True,
        metavar="NAME,...",
        help="Which engines: levels, wheel, hierarchy, memory, java-levels, java-wheel.",
    ),
    click.option(
        "--messages",
        type=Count(min=1),
        help="How many messages, 100,000 unless given; of a backlog or trace at most so many.",
    ),
    click.option(
        "--rate",
        "rate_per_second",
        type=Rate(),
        metavar="N",
        help="How many arrive a second; all at once unless given, tdmq 1,000.",
    ),
    said("--body-bytes", Count(min=8, max=4 << 20), 1_024, "How long bodies are."),
    said("--topics", Count(min=1, max=1_000), 4, "For how many topics."),
    said(
        "--seed",
        Count(min=0),
        1,
        "Another number makes other messages and faults; the same number the same.",
    ),
    click.option(
        "--delays",
        type=DelayRange(),
        metavar="MIN-MAX",
        help="How long messages wait, such as 30s-10m; of a burst how long until its end.",
    ),
    click.option("--store", type=STORE, help="The store whose backlog it is; it is only read."),
    click.option(
        "--converted",
        type=STORE,
        help="What that store was converted into, as of --now: it takes part with its own wheel.",
    ),
    click.option("--trace", type=STORE, help="A CSV file with the columns arrival and due."),
    click.option(
        "--now",
        "now_ms",
        type=Time(),
        help="With a backlog or trace, on the virtual clock: nobody looks at the engines before"
        f" then, as if they had been stopped; {TIME_FORMS}.",
    ),
    said("--precision-ms", click.Choice(PRECISIONS), "1000", "How wide a slot of the wheels is."),
    said(
        "--max-delay",
        DurationWithin("1s", "3650d"),
        "3d",
        "The longest delay that the wheels take, as timerMaxDelaySec.",
        "max_delay_ms",
    ),
    said(
        "--clock",
        click.Choice(["virtual", "wall"]),
        "virtual",
        "virtual: time leaps to what comes next. wall: everything takes as long as it takes.",
    ),
    said(
        "--tick",
        DurationWithin("1ms", "1h"),
        "100ms",
        "On the virtual clock, how often engines are looked at when something is due.",
        "tick_ms",
    ),
    click.option(
        "--fault",
        multiple=True,
        metavar="KIND@WHEN[+LONG]",
        help="What goes wrong on the virtual clock, so long after the beginning: restart@10m,"
        " kill@10m, reboot@10m (nothing is in the page cache then), kill-inside@10m (in the middle"
        " of a delivery), clock-back@10m+1h, clock-forward@10m+1h, disk-full@10m+30s; can be given"
        " repeatedly.",
    ),
    click.option(
        "--faults",
        type=Count(min=0),
        default=0,
        metavar="N",
        help="On the virtual clock, so many faults of all kinds at random points.",
    ),
    said(
        "--repeat",
        Count(min=1, max=100),
        1,
        "How often each engine runs, in turns; the speeds are those of the middle run.",
    ),
    click.option(
        "--report", "report_file", type=STORE, help="Also write a report with curves, as HTML."
    ),
    click.option(
        "--directory", type=STORE, help="Where stores are made, unless where temporary files go."
    ),
    click.option(
        "--keep", type=STORE, help="Make the stores in this new directory, and leave them there."
    ),
)
"""Everything that ``compare`` can be told."""
