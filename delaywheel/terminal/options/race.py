# SPDX-License-Identifier: Apache-2.0
"""The flags of ``compare``: which workload, which engines, which clock, what goes wrong."""

import math

import click
from click.core import ParameterSource

from delaywheel.terminal.options.conversion import PRECISIONS, STORE, said
from delaywheel.terminal.options.types import TIME, TIME_FORMS, Parsed, all_of, parse_length
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
        workloads = _FOR_WORKLOADS.get(option.name or "", WORKLOADS)
        if context.get_parameter_source(option.name or "") is not ParameterSource.COMMANDLINE:
            continue
        if clock != "virtual" and option.name in _FOR_THE_VIRTUAL_CLOCK:
            raise click.UsageError(f"{option.opts[0]} needs the virtual clock")
        if workload not in workloads:
            names = listed(workloads)
            raise click.UsageError(f"{option.opts[0]} is for --workload {names}, not {workload}")


class Count(click.IntRange):
    """A whole number within a range, which a refusal calls an integer."""

    name = "integer"


def _parse_rate(text: str) -> float:
    """Messages a second, above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise click.BadParameter(f"{text!r} is no number of messages a second, such as 2000")
    return rate


def _duration_within(least: str, longest: str) -> Parsed[int]:
    """A duration that is neither too short nor too long to mean anything."""

    def parse(text: str) -> int:
        length_ms = parse_length(text)
        if not parse_length(least) <= length_ms <= parse_length(longest):
            raise click.BadParameter(f"{text!r} is not within {least} to {longest}")
        return length_ms

    return Parsed("duration", parse)


def _parse_delays(text: str) -> tuple[int, int]:
    """The shortest and the longest delay in milliseconds, from ``30s-10m``."""
    first, _, last = text.partition("-")
    bounds = parse_length(first), parse_length(last or first)
    if bounds[0] > bounds[1]:
        raise click.BadParameter(f"{text!r} ends before it begins")
    return bounds


def _parse_engines(text: str) -> tuple[str, ...]:
    """Names in order, none of them twice, from ``levels,wheel``."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise click.BadParameter(f"{text!r} is not a list of engines such as levels,wheel")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise click.BadParameter(f"{text!r} names {name} twice; --repeat runs it again")
    return names


compare_options = all_of(
    said(
        "--workload",
        click.Choice(WORKLOADS),
        "uniform",
        "levels: the 18 fixed delays. uniform: random times. burst: all due in one second."
        " tdmq: a steady stream, due 30 s to 10 min later. backlog: the pending messages of"
        " --store. trace: the arrivals and due times of --trace.",
    ),
    click.option(
        "--engines",
        type=Parsed("engines", _parse_engines),
        default="levels,wheel",
        show_default=True,
        metavar="NAME,...",
        help="Which engines: levels, wheel, hierarchy, time-index, reference-levels,"
        " reference-wheel, memory, java-levels, java-wheel.",
    ),
    click.option(
        "--messages",
        type=Count(min=1),
        help="How many messages, 100,000 unless given; of a backlog or trace at most so many.",
    ),
    click.option(
        "--rate",
        "rate_per_second",
        type=Parsed("rate", _parse_rate),
        metavar="N",
        help="How many arrive a second; all at once unless given, tdmq 1,000.",
    ),
    said("--body-bytes", Count(min=8, max=4 << 20), 1_024, "Length of bodies."),
    said("--topics", Count(min=1, max=1_000), 4, "Number of topics."),
    said(
        "--seed", Count(min=0), 1, "Random seed; the same seed makes the same messages and faults."
    ),
    click.option(
        "--delays",
        type=Parsed("delays", _parse_delays),
        metavar="MIN-MAX",
        help="Range of delays, such as 30s-10m. For burst: time until the burst ends.",
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
        type=TIME,
        help="With a backlog or trace on the virtual clock, keep the engines stopped until then."
        f" {TIME_FORMS}.",
    ),
    said("--precision-ms", click.Choice(PRECISIONS), "1000", "Slot width of the wheels in ms."),
    said(
        "--max-delay",
        _duration_within("1s", "3650d"),
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
        _duration_within("1ms", "1h"),
        "100ms",
        "Polling interval on the virtual clock.",
        "tick_ms",
    ),
    click.option(
        "--fault",
        multiple=True,
        metavar="KIND@WHEN[+LONG]",
        help="A fault on the virtual clock, so long after the beginning; can be given repeatedly."
        " Kinds: restart@10m, kill@10m, reboot@10m (nothing is in the page cache then),"
        " kill-inside@10m (in the middle of a delivery), clock-back@10m+1h, clock-forward@10m+1h,"
        " disk-full@10m+30s.",
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
        "How many runs of each engine are judged, in turns, by the median and the worst. With more"
        " than one, memory is warmed before each, and a first round does not count.",
    ),
    click.option(
        "--report", "report_file", type=STORE, help="Also write a report with curves, as HTML."
    ),
    click.option(
        "--directory", type=STORE, help="Where stores are made. Default: where temporary files go."
    ),
    click.option(
        "--keep", type=STORE, help="Make the stores in this new directory, and leave them there."
    ),
)
"""Everything that ``compare`` can be told."""
