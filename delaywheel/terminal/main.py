# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call the library, hand the result to ``Output``. No logic of its own.

Results go to stdout, progress and warnings to stderr. What brings Spark or compiled kernels is
imported inside the verbs, so that ``delaywheel --help`` answers at once.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import (
    STORE,
    conversion_options,
    conversion_request,
    generate_options,
    now_option,
    offsets_option,
    require_window,
    spark_options,
)
from delaywheel.terminal.options.types import TIME_FORMS, Time
from delaywheel.terminal.spark import Settings, started_spark
from delaywheel.terminal.verb import (
    DONE,
    EXIT_CODES,
    FINDINGS,
    INTERRUPTED,
    SOURCE_UNREADABLE,
    STOPPED_BY_POLICY,
    TARGET_UNWRITABLE,
    USAGE,
    exit_code,
    loading,
    main,
    verb,
)
from delaywheel.terminal.verbs import changes as cli_migrate
from delaywheel.terminal.verbs import check as cli_check  # noqa: F401  their verbs become commands of main
from delaywheel.terminal.verbs import compare as cli_compare  # noqa: F401
from delaywheel.terminal.verbs import engines as cli_engines  # noqa: F401
from delaywheel.terminal.verbs import export as cli_export  # noqa: F401
from delaywheel.terminal.verbs import fleet as cli_fleet
from delaywheel.terminal.verbs import verify as cli_verify  # noqa: F401
from message_store.base.clock import SystemClock
from message_store.base.errors import DelayStoreError
from message_store.files.store_root import StoreRoot
from migrate.spark.master import require_shared_directory

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output

__all__ = [
    "DONE",
    "EXIT_CODES",
    "FINDINGS",
    "INTERRUPTED",
    "SOURCE_UNREADABLE",
    "STOPPED_BY_POLICY",
    "TARGET_UNWRITABLE",
    "USAGE",
    "exit_code",
    "main",
]


@verb("delaywheel inspect /data/rocketmq/store")
@click.argument("store", type=STORE)
@offsets_option()
@now_option("As of when messages are overdue:")
def inspect(output: "Output", store: Path, offsets: str, now_ms: int) -> None:
    """Say what a directory is: version, clean or crashed, what waits in its levels and wheel."""
    with loading(output):
        from migrate.look.inspect import inspect_store
    with output.progress() as progress:
        progress("reading", 0, 0)
        found = inspect_store(store, now_ms=now_ms, offsets=offsets)
    output.inspection(found)


@verb(
    "delaywheel convert /data/rocketmq/store /data/rocketmq/store-wheel \\\n"
    "    --target-conf /etc/rocketmq/broker.conf --report conversion.html\n"
    "delaywheel convert /mnt/broker-a/store /mnt/broker-b/store /mnt/broker-c/store /data/wheels\n"
    "delaywheel convert /mnt/broker-a/store /mnt/broker-b/store /data/store-wheel --merge"
)
@click.argument("stores", nargs=-1, type=STORE, metavar="SOURCE... TARGET")
@cli_fleet.manifest_option
@cli_fleet.merge_option
@conversion_options
@spark_options
@cli_migrate.in_place_options
@click.option(
    "--report",
    "report_file",
    type=STORE,
    help="Also write a report, as HTML; of many stores a directory of them.",
)
def convert(
    output: "Output",
    stores: tuple[Path, ...],
    manifest: Path | None,
    merge: bool,
    master: str,
    conf: Settings,
    report_file: Path | None,
    in_place: bool,
    execute: bool,
    **given: Any,
) -> None:
    """Convert what waits in the levels of SOURCE into a fresh store TARGET with a wheel.

    TARGET does not exist or is empty. A run that was stopped is continued by the same command.
    With --in-place there is no TARGET: SOURCE gets the messages for its own wheel.
    With several SOURCEs, TARGET is the directory in which each gets a target of its own; with
    --merge it is one target for what waits in all of them.
    """
    is_fleet = cli_fleet.is_fleet(stores, manifest)
    cli_migrate.require_places(
        stores,
        is_fleet=is_fleet,
        in_place=in_place,
        execute=execute,
        merge=merge,
        report=report_file is not None,
    )
    if in_place:
        cli_migrate.run_in_place(output, source=stores[0], execute=execute, **given)
        return
    start_spark = partial(started_spark, master=master, conf=conf)
    if is_fleet and merge:
        cli_fleet.run_merge(
            output, stores, manifest, start_spark=start_spark, report_file=report_file, **given
        )
        return
    if is_fleet:
        cli_fleet.run_fleet(
            output, stores, manifest, start_spark=start_spark, reports=report_file, **given
        )
        return
    _convert_one(output, stores[0], stores[1], start_spark, report_file, given)


def _convert_one(
    output: "Output",
    source: Path,
    target: Path,
    start_spark: cli_fleet.StartSpark,
    report_file: Path | None,
    given: dict[str, Any],
) -> None:
    with loading(output):
        from migrate import convert as conversion
        from migrate.report.finished_before import finished_before
        from migrate.report.finished_target import refuse_file
    if report_file is not None:
        from migrate.report.html import require_report_place, write_html_report

        require_report_place(report_file, source)
    with output.progress() as progress:
        options = conversion_request(source=source, target=target, **given)
        refuse_file(options.target)
        report = None
        with suppress(DelayStoreError):  # what is in the way is said by what comes next
            report = finished_before(options)
        was_done = report is not None
        if report is None:
            conversion.check_request(options)  # before the seconds that Spark takes
            with start_spark(progress) as (spark, start_s):
                report = conversion.convert(
                    options, spark=spark, spark_start_s=start_s, progress=progress
                )
    try:
        output.conversion(report, SystemClock().now_ms(), was_done=was_done)
    finally:
        if report_file is not None and not (was_done and report_file.exists()):
            write_html_report(report, report_file)


@verb("delaywheel pending /data/rocketmq/store --level 18 --limit 5")
@click.argument("store", type=STORE)
@click.option("--topic", help="Only messages for this topic.")
@click.option("--level", type=click.IntRange(min=1), help="Only this level.")
@click.option("--key", help="Only messages with this unique key, or with this among their keys.")
@click.option("--due-after", "due_after_ms", type=Time(), help=f"Due then or later, {TIME_FORMS}.")
@click.option("--due-before", "due_before_ms", type=Time(), help=f"Due before then, {TIME_FORMS}.")
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many messages.")
@offsets_option()
@now_option("As of when:")
def pending(output: "Output", store: Path, offsets: str, now_ms: int, **filters: Any) -> None:
    """List the messages that wait in a store, the next due first.

    One JSON object a line; on a terminal, unless --json is given, one message a line for people.
    Messages that cannot be read are named on stderr, and end the command with exit code 1.
    """
    require_window(filters["due_after_ms"], filters["due_before_ms"])
    with loading(output):
        from migrate.look.choices import absent_choices
        from migrate.look.pending import PendingFilter, pending_messages
        from migrate.source.source_warnings import loss_warnings
    found = pending_messages(store, PendingFilter(**filters), now_ms=now_ms, offsets=offsets)
    for warning in loss_warnings(StoreRoot(store)):
        output.warn(warning)
    listed, unreadable = output.pending(found, now_ms)
    if not (listed or unreadable or filters["limit"] == 0):
        named = ("topic", "level")
        topics, levels = ([filters[name]] if filters[name] is not None else [] for name in named)
        for warning in absent_choices(StoreRoot(store), topics=topics, levels=levels):
            output.warn(warning)
    click.get_current_context().exit(FINDINGS if unreadable else DONE)


@verb("delaywheel demo")
@click.option("--directory", type=STORE, help="Where to; unless given, where temporary files go.")
@spark_options
def demo(output: "Output", directory: Path | None, master: str, conf: Settings) -> None:
    """Convert the small real store that ships with delaywheel, and verify the result."""
    with loading(output):
        from migrate.demo import run_demo
    require_shared_directory(master, directory, "--directory")
    with output.progress() as progress, started_spark(progress, master, conf) as (spark, start_s):
        result = run_demo(directory, spark=spark, spark_start_s=start_s, progress=progress)
    output.demo(result, None if directory is not None else str(Path(result.source).parent))
    click.get_current_context().exit(DONE if result.verification.is_clean else FINDINGS)


@verb("delaywheel generate /tmp/levels --messages 1000000 --now 2026-01-02T03:04:05Z")
@click.argument("store", type=STORE)
@click.option(
    "--messages", type=click.IntRange(0, 10**10), required=True, help="How many messages."
)
@generate_options
@now_option("When the broker was stopped, as it were:")
def generate(output: "Output", store: Path, now_ms: int, **recipe: Any) -> None:
    """Make a level store in which messages wait, as a stopped broker would have left it."""
    with loading(output):
        from legacy_levels.generate.store import generate_level_store
    with output.progress() as progress:
        progress("generate", 0, 0)
        made = generate_level_store(store, now_ms=now_ms, **recipe)
    output.generated(str(store), made, now_ms)


if __name__ == "__main__":
    main()
