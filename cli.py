# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call the library, hand the result to ``Output``. No logic of its own.

Results go to stdout, progress and warnings to stderr. What brings Spark or compiled kernels is
imported inside the verbs, so that ``delaywheel --help`` answers at once.
"""

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli_input import (
    STORE,
    TIME_FORMS,
    Time,
    conversion_options,
    conversion_request,
    generate_options,
    now_option,
    offsets_option,
    spark_options,
)
from message_store.clock import SystemClock, stopwatch_s
from message_store.errors import DelayStoreError
from migrate.spark_master import require_shared_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cli_output import Output
    from cli_progress import StageProgress

Settings = tuple[tuple[str, str], ...]

DONE = 0
"""Everything asked for was done, and nothing is wrong."""
FINDINGS = 1
"""Something is wrong that the command was asked to look for: differences, unreadable messages."""
USAGE = 2
"""The command was not understood, or does not fit the store: level table, now."""
SOURCE_UNREADABLE = 3
"""The source is missing, of a kind that is not read, in use, crashed, or damaged beyond reading."""
TARGET_UNWRITABLE = 4
"""The target cannot be written or continued, or there is nothing to write it with (Java, Spark)."""
STOPPED_BY_POLICY = 5
"""Messages would have been left behind: bad records, or a wheel that is not empty."""
INTERRUPTED = 130
"""Stopped by Ctrl-C; the same conversion continues."""

PATIENCE_S = 1.5
"""Nobody waits longer than this without being told for what."""

# By name, because importing some of these classes would start to load Spark. The first of an
# error's own classes, from the most special to the most general, that is in the table decides.
EXIT_CODES = {
    "OutputError": TARGET_UNWRITABLE,
    "BadRecordsError": STOPPED_BY_POLICY,
    "WheelNotEmptyError": STOPPED_BY_POLICY,
    "VerificationError": FINDINGS,
    "OptionsError": USAGE,
    "PlanError": TARGET_UNWRITABLE,
    "UnsupportedDelayError": USAGE,
    "JavaMissingError": TARGET_UNWRITABLE,
    "TargetError": TARGET_UNWRITABLE,
    "MigrationError": TARGET_UNWRITABLE,
    "SourceError": SOURCE_UNREADABLE,
    "FormatError": SOURCE_UNREADABLE,
    "DelayStoreError": SOURCE_UNREADABLE,
}


def exit_code(error: DelayStoreError) -> int:
    """The exit code of an error that is meant for people."""
    return next(
        EXIT_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in EXIT_CODES
    )


_INTERRUPTED = {
    "convert": "interrupted; the same command goes on where it stopped",
    "generate": "interrupted; what is there is not a whole store: remove it and begin anew",
}


class Verbs(click.Group):
    """Turns what the library refuses into one sentence and an exit code; anything else is a bug,
    and keeps its traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        if sys.stdout is None:
            click.echo("standard output is closed: there is no place for the result", err=True)
            ctx.exit(TARGET_UNWRITABLE)
        try:
            return super().invoke(ctx)
        except DelayStoreError as error:
            _output(ctx).failure(error)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            click.echo(_INTERRUPTED.get(ctx.invoked_subcommand or "", "interrupted"), err=True)
            ctx.exit(INTERRUPTED)


def _output(ctx: click.Context, *, as_json: bool = False, is_quiet: bool = False) -> "Output":
    """The one Output of a run."""
    from cli_output import Output

    root = ctx.find_root()
    if root.obj is None:
        root.obj = Output(as_json=as_json, is_quiet=is_quiet)
    output: Output = root.obj
    return output


def verb(example: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command with ``--json`` and ``--quiet`` whose help ends with ``example``; its function gets
    the Output first.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, is_quiet: bool, **given: Any) -> None:
            ctx = click.get_current_context()
            function(_output(ctx, as_json=as_json, is_quiet=is_quiet), **given)

        quiet = click.option("--quiet", "is_quiet", is_flag=True, help="No progress on stderr.")
        json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        name = function.__name__.removesuffix("_")
        lines = "\n".join(f"  {line}" for line in example.splitlines())
        return main.command(name, epilog=f"\b\nExample:\n{lines}")(json(quiet(run)))

    return decorate


@contextmanager
def _loading(output: "Output") -> Iterator[None]:
    """Around the imports of compiled code: when that takes long, say why."""
    with output.progress() as progress:
        words = "loading compiled kernels; the first run compiles them, which takes some seconds"
        patience = threading.Timer(PATIENCE_S, progress.say, [words])
        patience.daemon = True
        patience.start()
        try:
            yield
        finally:
            patience.cancel()


@contextmanager
def _spark(
    progress: "StageProgress", master: str, conf: Settings
) -> Iterator[tuple["SparkSession", float]]:
    """A session, and the seconds that it took to start."""
    from migrate.session import spark_session

    started_s = stopwatch_s()
    progress.say("starting Spark")
    with spark_session(master, dict(conf)) as spark:
        yield spark, stopwatch_s() - started_s


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="delaywheel")
def main() -> None:
    """Moves what waits in RocketMQ's 18 delay levels into a RocketMQ 5 timer wheel.

    Works on the store directory of a stopped broker, or a copy of it; the source is only read.
    """
    # Whatever goes wrong in a library comes back as an exception; its log lines would only add
    # tracebacks to it, as Py4J does when a run is interrupted.
    logging.basicConfig(handlers=[logging.NullHandler()])


@verb("delaywheel inspect /data/rocketmq/store")
@click.argument("store", type=STORE)
@offsets_option()
@now_option("As of when messages are overdue:")
def inspect(output: "Output", store: Path, offsets: str, now_ms: int) -> None:
    """Say what a directory is: version, clean or crashed, what waits in its levels and wheel."""
    with _loading(output):
        from migrate.inspect_store import inspect_store
    with output.progress() as progress:
        progress("reading", 0, 0)
        found = inspect_store(store, now_ms=now_ms, offsets=offsets)
    output.inspection(found)


@verb(
    "delaywheel convert /data/rocketmq/store /data/rocketmq/store-wheel \\\n"
    "    --target-conf /etc/rocketmq/broker.conf --report conversion.html"
)
@click.argument("source", type=STORE)
@click.argument("target", type=STORE)
@conversion_options
@spark_options
@click.option("--report", "report_file", type=STORE, help="Also write a report, as HTML.")
def convert(
    output: "Output", master: str, conf: Settings, report_file: Path | None, **given: Any
) -> None:
    """Convert what waits in the levels of SOURCE into a fresh store TARGET with a wheel.

    TARGET does not exist or is empty. A run that was stopped is continued by the same command.
    """
    with _loading(output):
        from migrate import convert as conversion
        from migrate.finished_target import refuse_file
    if report_file is not None:
        from migrate.html_report import require_report_place, write_html_report

        require_report_place(report_file)
    with output.progress() as progress:
        options = conversion_request(**given)
        refuse_file(options.target)
        conversion.check_request(options)  # before the seconds that Spark takes
        with _spark(progress, master, conf) as (spark, start_s):
            report = conversion.convert(
                options, spark=spark, spark_start_s=start_s, progress=progress
            )
    try:
        output.conversion(report, SystemClock().now_ms())
    finally:
        if report_file is not None:
            write_html_report(report, report_file)


@verb("delaywheel verify /data/rocketmq/store /data/rocketmq/store-wheel")
@click.argument("source", type=STORE)
@click.argument("target", type=STORE)
@spark_options
@click.option(
    "--scratch",
    type=STORE,
    help="A directory that every worker sees; needed on a cluster, to hand out the work.",
)
def verify(
    output: "Output",
    source: Path,
    target: Path,
    master: str,
    conf: Settings,
    scratch: Path | None,
) -> None:
    """Account for every pending message of SOURCE in TARGET, reading both sides afresh.

    Ends with exit code 1 unless nothing is missing, unexpected or different.
    """
    with _loading(output):
        from migrate import verify as verification
        from migrate.finished_target import require_pair
    require_shared_directory(master, scratch, "--scratch")
    options = verification.VerifyOptions(scratch=scratch)
    with output.progress() as progress:
        require_pair(source, target)  # before the seconds that Spark takes
        with _spark(progress, master, conf) as (spark, _start_s):
            report = verification.verify(
                source, target, spark=spark, options=options, progress=progress
            )
    output.verification(report, str(target))
    click.get_current_context().exit(DONE if report.is_clean else FINDINGS)


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
    with _loading(output):
        from migrate.pending import PendingFilter, pending_messages
    found = pending_messages(store, PendingFilter(**filters), now_ms=now_ms, offsets=offsets)
    unreadable = output.pending(found, now_ms)
    click.get_current_context().exit(FINDINGS if unreadable else DONE)


@verb("delaywheel demo")
@click.option("--directory", type=STORE, help="Where to; unless given, where temporary files go.")
@spark_options
def demo(output: "Output", directory: Path | None, master: str, conf: Settings) -> None:
    """Convert the small real store that ships with delaywheel, and verify the result."""
    with _loading(output):
        from migrate.demo import run_demo
    require_shared_directory(master, directory, "--directory")
    with output.progress() as progress, _spark(progress, master, conf) as (spark, start_s):
        result = run_demo(directory, spark=spark, spark_start_s=start_s, progress=progress)
    output.demo(result)
    click.get_current_context().exit(DONE if result.verification.is_clean else FINDINGS)


@verb("delaywheel generate /tmp/levels --messages 1000000 --now 2026-01-02T03:04:05Z")
@click.argument("store", type=STORE)
@click.option("--messages", type=click.IntRange(min=0), required=True, help="How many messages.")
@generate_options
@now_option("When the broker was stopped, as it were:")
def generate(output: "Output", store: Path, now_ms: int, **recipe: Any) -> None:
    """Make a level store in which messages wait, as a stopped broker would have left it."""
    with _loading(output):
        from legacy_levels.generate import generate_level_store
    with output.progress() as progress:
        progress("generate", 0, 0)
        made = generate_level_store(store, now_ms=now_ms, **recipe)
    output.generated(str(store), made, now_ms)


if __name__ == "__main__":
    main()
