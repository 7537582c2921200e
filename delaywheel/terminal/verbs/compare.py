# SPDX-License-Identifier: Apache-2.0
"""The verb ``compare``: one workload through several engines, side by side."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from delaywheel.terminal.options.race import (
    BACKLOG,
    TRACE,
    compare_options,
    require_flags_that_apply,
)
from delaywheel.terminal.options.types import errors_of_flag
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from message_store.base.errors import BadFieldError

if TYPE_CHECKING:
    from compare.running.faults import Fault
    from compare.running.observation import RaceSettings
    from compare.running.race import Entrant
    from compare.workloads.workload import Workload
    from delaywheel.terminal.render.output import Output
    from delaywheel.terminal.render.progress import StageProgress


@verb(
    "delaywheel compare --workload burst --messages 500000 --engines levels,wheel --json\n"
    "delaywheel compare --workload uniform --messages 20000 --fault kill@30m --report race.html\n"
    "delaywheel compare --workload tdmq --rate 2000 --delays 1s-10s --messages 20000 --clock wall\n"
    "delaywheel compare --workload backlog --store /data/rocketmq/store \\\n"
    "    --converted /data/rocketmq/store-wheel --now 2026-01-02T03:04:05Z"
)
@compare_options
def compare(
    output: "Output",
    engines: tuple[str, ...],
    report_file: Path | None,
    directory: Path | None,
    keep: Path | None,
    repeat: int,
    **given: Any,
) -> None:
    """Run one workload through several engines, one after the other, and say how they did.

    On the virtual clock (the default) nothing is waited for, and the same seed gives the same
    deliveries. Ends with exit code 1 when an engine delivered something early, twice or not at all,
    or when none could run.
    """
    with loading(output):
        from compare.running.race import ENTRANTS, Race, run_race
        from compare.running.work_files import left_behind, race_directory
        from delaywheel.terminal.render.race import race_lines
    _require_engines(engines)
    if given["converted"] is None:
        _require_a_clock_for(engines, given["clock"])
    require_flags_that_apply(given["workload"], given["clock"])
    if report_file is not None:
        from compare.report.html import write_report
        from migrate.report.html import require_report_place

        stores = (given[name] for name in ("store", "converted") if given[name] is not None)
        require_report_place(report_file, *stores)
    for left in left_behind(directory):
        output.warn(f"{left}: left by a race that was killed; it can be removed")
    with output.progress() as progress, race_directory(directory, keep) as race_folder:
        entrants: dict[str, Entrant] = dict(ENTRANTS)
        workload = _workload(progress, entrants, **given)
        settings = _settings(workload, **given)
        race = Race(
            workload=workload,
            engines=(*engines, *(name for name in entrants if name not in ENTRANTS)),
            settings=settings,
            directory=race_folder,
            repeat=repeat,
            warming=int(repeat > 1),
            keeps_stores=keep is not None,
            command=shlex.join(["delaywheel", *sys.argv[1:]]),
        )
        results = run_race(race, progress, entrants)
    # Before anything else can fail: it may have taken an hour.
    output.result(results.as_json, race_lines(results))
    if report_file is not None:
        write_report(results, report_file)
    click.get_current_context().exit(DONE if results.is_right else FINDINGS)


def _require_engines(engines: tuple[str, ...]) -> None:
    from compare.running.race import ENTRANTS

    for name in engines:
        if name not in ENTRANTS:
            names = ", ".join(ENTRANTS)
            raise click.BadParameter(f"{name!r} is none of {names}", param_hint="--engines")


def _require_a_clock_for(engines: tuple[str, ...], clock: str) -> None:
    """Refuse a clock on which none of the engines can race."""
    from compare.rocketmq.java_engines import JAVA_ENTRANTS

    if clock == "virtual" and all(name in JAVA_ENTRANTS for name in engines):
        raise click.UsageError(
            f"{', '.join(engines)} cannot race on the virtual clock: RocketMQ's own engines"
            " ask the machine what time it is; they need --clock wall"
        )


def _workload(
    progress: "StageProgress",
    entrants: "dict[str, Entrant]",
    *,
    workload: str,
    messages: int | None,
    trace: Path | None,
    body_bytes: int,
    **given: Any,
) -> "Workload":
    """The workload; a converted store of its own joins the entrants."""
    from compare.workloads.made_up import Recipe, make_workload
    from compare.workloads.recorded import trace as read_trace

    if workload == BACKLOG:
        return attrs.evolve(_backlog(progress, entrants, messages, **given), seed=given["seed"])
    if workload == TRACE:
        if trace is None:
            raise click.UsageError("--workload trace needs --trace: a CSV of arrival and due")
        read = read_trace(trace, body_bytes=body_bytes, most=messages)
        return attrs.evolve(read, seed=given["seed"])
    wanted = ("topics", "seed", "rate_per_second")
    least_ms, longest_ms = given["delays"] or (None, None)
    recipe = Recipe(
        **{name: given[name] for name in wanted},
        **({} if messages is None else {"messages": messages}),
        body_bytes=body_bytes,
        delay_min_ms=least_ms,
        delay_max_ms=longest_ms,
    )
    try:
        return make_workload(workload, recipe)
    except BadFieldError as error:
        raise click.UsageError(str(error)) from error


def _backlog(
    progress: "StageProgress",
    entrants: "dict[str, Entrant]",
    messages: int | None,
    *,
    store: Path | None,
    converted: Path | None,
    now_ms: int | None,
    **_given: Any,
) -> "Workload":
    """The backlog of a store; its converted target takes part, where that is named."""
    if store is None:
        raise click.UsageError("--workload backlog needs --store: whose backlog")
    from compare.running.converted_entrant import CONVERTED, ConvertedEntrant, require_converted
    from delaywheel.terminal.verbs.compare_backlog import read_backlog_workload

    if converted is not None:
        if now_ms is None:
            raise click.UsageError("--converted needs --now: the reference time of the conversion")
        require_converted(converted)
    made, unique_keys = read_backlog_workload(store, now_ms, messages, progress)
    if converted is not None and now_ms is not None:
        entrants[CONVERTED] = ConvertedEntrant(converted, unique_keys, now_ms)
    return made


def _settings(
    made: "Workload",
    *,
    now_ms: int | None,
    clock: str,
    precision_ms: str,
    tick_ms: int,
    max_delay_ms: int,
    fault: tuple[str, ...],
    faults: int,
    seed: int,
    **_given: Any,
) -> "RaceSettings":
    from compare.running.observation import RaceSettings

    return RaceSettings(
        clock=clock,
        precision_ms=int(precision_ms),
        tick_ms=tick_ms,
        max_delay_ms=max_delay_ms,
        asleep_until_ms=now_ms or 0,
        faults=_faults(made, fault, faults, seed),
    )


def _faults(
    made: "Workload", chosen: tuple[str, ...], count: int, seed: int
) -> "tuple[Fault, ...]":
    """Those that were chosen, and so many at random points."""
    from compare.running.faults import Fault, random_faults

    with errors_of_flag("--fault"):
        asked = tuple(Fault.parse(text) for text in chosen)
    return asked + random_faults(count, seed, made.end_ms - made.start_ms)
