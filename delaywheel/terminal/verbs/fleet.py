# SPDX-License-Identifier: Apache-2.0
"""``convert`` into fresh targets: of which stores, from words or from a manifest, and with what."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from delaywheel.terminal.options.conversion import STORE, conversion_options, conversion_request
from delaywheel.terminal.verb import DONE, exit_code, loading
from message_store.base.clock import SystemClock
from message_store.base.errors import DelayStoreError
from message_store.files.small_files import read_small_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delaywheel.terminal.render.output import Output
    from delaywheel.terminal.render.progress import StageProgress
    from migrate.report.report import ConversionReport
    from migrate.settings import ConvertOptions

StartSpark = Callable[
    ["StageProgress"], AbstractContextManager[tuple["SparkSession | None", float]]
]

MANIFEST_FLAG = "--manifest"

manifest_option = click.option(
    MANIFEST_FLAG,
    type=STORE,
    help="A file of many stores. Each line is a SOURCE, a TARGET, and flags for that store alone;"
    " or the file is a JSON list of objects.",
)


merge_option = click.option(
    "--merge",
    is_flag=True,
    help="With several SOURCEs: put the messages of all of them into one TARGET, for one broker.",
)


@click.command(add_help_option=False)
@click.argument("source", type=STORE)
@click.argument("target", type=STORE)
@conversion_options
def _line(**_given: Any) -> None:
    """What a line of a manifest may say."""


def is_fleet(paths: Sequence[Path], manifest: Path | None) -> bool:
    """Whether these arguments of ``convert`` name many stores."""
    return manifest is not None or len(paths) > 2


def run_fleet(
    output: "Output",
    paths: Sequence[Path],
    manifest: Path | None,
    *,
    start_spark: StartSpark,
    report: Path | None,
    **given: Any,
) -> None:
    """``convert SOURCE... TARGET_DIR`` and ``convert --manifest FILE``; ends with the worst exit
    code of all. ``report`` is a directory of pages.
    """
    with loading(output):
        from delaywheel.terminal.render.fleet import fleet_failures, fleet_lines, fleet_warnings
        from delaywheel.terminal.render.progress import say_on_stderr
        from message_store.files.store_root import require_outside
        from migrate.fleet import Fleet
        from migrate.report.html import require_report_place
    members = _members(paths, manifest, given, _in_one_place)
    fleet = Fleet(members, report)
    if report is not None:
        require_outside(report, *_stores(members))
        require_report_place(report / "any.html")
    with output.progress() as progress:
        progress("looking at the stores", 0, 0)
        fleet.examine()  # before the seconds that Spark takes
        if not fleet.is_settled:
            with start_spark(progress) as (spark, _start_s):
                fleet.convert(spark, progress)
    clock_ms, entries = SystemClock().now_ms(), fleet.entries
    output.warnings(fleet_warnings(entries, clock_ms))
    output.result(lambda: [entry.as_json() for entry in entries], fleet_lines(entries, clock_ms))
    for line in fleet_failures(entries):
        say_on_stderr(line)
    errors = [entry.error for entry in fleet.entries if entry.error is not None]
    click.get_current_context().exit(max(map(exit_code, errors), default=DONE))


def run_one_target(
    output: "Output",
    paths: Sequence[Path],
    manifest: Path | None,
    *,
    start_spark: StartSpark,
    report: Path | None,
    **given: Any,
) -> None:
    """``convert SOURCE TARGET``, and ``convert SOURCE... TARGET --merge``; a ``--manifest`` names
    that one TARGET in each line. ``report`` is a page.
    """
    with loading(output):
        from migrate.convert import check_request, convert_merged
        from migrate.report.finished_target import refuse_file
    members = _members(paths, manifest, given, _into_one)
    if report is not None:
        from migrate.report.html import require_report_place, write_html_report

        require_report_place(report, *_stores(members))
    refuse_file(members[0].target)
    finished = _finished(members)
    made = finished
    if made is None:
        with output.progress() as progress:
            if len(members) > 1:
                progress("looking at the stores", 0, 0)
            check_request(*members)  # before the seconds that Spark takes
            with start_spark(progress) as (spark, start_s):
                made = convert_merged(
                    members, spark=spark, spark_start_s=start_s, progress=progress
                )
    try:
        _show_conversion(output, made, was_done=finished is not None)
    finally:
        if report is not None and not (finished and report.exists()):
            write_html_report(made, report)


def run_plan(output: "Output", paths: Sequence[Path], manifest: Path | None, **given: Any) -> None:
    """``convert SOURCE TARGET --plan``, and with ``--merge``."""
    with loading(output):
        from delaywheel.terminal.render.text import plan_lines
        from migrate.convert import plan_conversion
        from migrate.report.finished_target import refuse_file
    members = _members(paths, manifest, given, _into_one)
    refuse_file(members[0].target)
    if (finished := _finished(members)) is not None:
        _show_conversion(output, finished, was_done=True)
        return
    with output.progress() as progress:
        plan = plan_conversion(*members, progress=progress)
    output.warnings(plan.report.warnings)
    output.result(plan.as_json, plan_lines(plan))
    click.get_current_context().exit(max(map(exit_code, plan.refusals), default=DONE))


def _stores(members: Sequence["ConvertOptions"]) -> Iterator[Path]:
    """The sources, and the targets."""
    return (path for each in members for path in (each.source, each.target))


def _finished(members: Sequence["ConvertOptions"]) -> "ConversionReport | None":
    """The report of an earlier run of the same command; obstacles are told later."""
    from migrate.report.finished_target import finished_before

    with suppress(DelayStoreError):
        return finished_before(*members)
    return None


def _show_conversion(output: "Output", report: "ConversionReport", *, was_done: bool) -> None:
    """The report of one target; ``was_done`` by an earlier run of the same command."""
    from delaywheel.terminal.render.text import conversion_lines, expired_warnings

    clock_ms = SystemClock().now_ms()
    output.warnings((*report.warnings, *expired_warnings(report, clock_ms)))
    output.result(report.as_json, conversion_lines(report, clock_ms, was_done=was_done))


def _members(
    paths: Sequence[Path],
    manifest: Path | None,
    given: dict[str, Any],
    named: "Callable[[Sequence[Path], dict[str, Any]], list[ConvertOptions]]",
) -> "list[ConvertOptions]":
    """The stores of a manifest, or those that words have ``named``."""
    if manifest is None:
        return named(paths, given)
    if paths:
        raise click.UsageError(f"{MANIFEST_FLAG} names the stores: there is nothing beside it")
    return _listed(manifest, given)


def _into_one(paths: Sequence[Path], given: dict[str, Any]) -> "list[ConvertOptions]":
    """Sources, and last their common target."""
    *sources, target = paths
    return [conversion_request(source=source, target=target, **given) for source in sources]


def _in_one_place(paths: Sequence[Path], given: dict[str, Any]) -> "list[ConvertOptions]":
    """Sources, and last the directory for their targets, each named after its source."""
    from migrate.fleet import target_name

    *sources, directory = paths
    named: dict[str, Path] = {}
    for source in sources:
        name = target_name(source)
        if name in named and named[name].resolve() == source.resolve():
            raise click.UsageError(f"{source} is given twice")
        if not name or name in named:
            also = f", and so is that of {named[name]}" if name in named else ""
            raise click.UsageError(
                f"the target of {source} is called {name!r}{also}; {MANIFEST_FLAG} names each"
            )
        named[name] = source
    return [
        conversion_request(source=source, target=directory / name, **given)
        for name, source in named.items()
    ]


def _listed(manifest: Path, given: dict[str, Any]) -> "list[ConvertOptions]":
    """The stores of a manifest; what a line does not say is as for all. Raises BadParameter."""
    members = []
    for where, words, unset in _entries(manifest):
        try:
            members.append(conversion_request(**_understood(words, unset, given)))
        except click.ClickException as error:
            raise _wrong(manifest, f"{where}: {error.format_message()}") from error
    if not members:
        raise _wrong(manifest, "names no store")
    return members


def _understood(words: list[str], unset: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """What a line says, and of the rest what was given for all. Flags that it says ``false`` of are
    not set for it.
    """
    line = _line.make_context("manifest", words)
    flags = {each.name for each in _line.params if isinstance(each, click.Option) and each.is_flag}
    for name in unset:
        if name not in flags:
            raise click.UsageError(f"false says nothing of --{name.replace('_', '-')}")
    given = given | dict.fromkeys(unset, False)
    typed = {
        name
        for name in line.params
        if line.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    request = {name: line.params[name] if name in typed else given[name] for name in line.params}
    if "broker_conf" in typed and "level_table" not in typed:
        request["level_table"] = None  # the table of all is not that of a store with its own
    return request


def _entries(manifest: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Where each entry stands, its words, and the flags that it does not want."""
    try:
        content = read_small_file(manifest)
        text = "" if content is None else content.decode()
    except (DelayStoreError, UnicodeDecodeError) as error:
        raise _wrong(manifest, str(error)) from error
    if content is None:
        raise _wrong(manifest, "no such file")
    if text.lstrip()[:1] in ("[", "{"):
        for number, entry in enumerate(_json_list(manifest, text), 1):
            words = _words(manifest, f"entry {number}", entry)
            unset = [key.replace("-", "_") for key, value in entry.items() if value is False]
            yield f"entry {number}", words, unset
        return
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise _wrong(manifest, f"line {number}: {error}") from error
        if words:
            yield f"line {number}", words, []


def _json_list(manifest: Path, text: str) -> list[Any]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(manifest, f"not JSON: {error}") from error
    if not isinstance(entries, list):
        raise _wrong(manifest, "not a list of objects")
    return entries


def _words(manifest: Path, where: str, entry: Any) -> list[str]:
    """An object of a manifest as the words of a command: its keys are flags."""
    if not isinstance(entry, dict) or not {"source", "target"} <= entry.keys():
        raise _wrong(manifest, f"{where}: not an object with source and target")
    words = []
    for key, value in entry.items():
        flag = f"--{key.replace('_', '-')}"
        if key in ("source", "target") or value is False or value is None:
            continue
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"{flag}={each}" for each in values]
    return [*words, "--", str(entry["source"]), str(entry["target"])]


def _wrong(manifest: Path, what: str) -> click.BadParameter:
    sentence = what if what.startswith(str(manifest)) else f"{manifest}: {what}"
    return click.BadParameter(sentence, param_hint=MANIFEST_FLAG)
