# SPDX-License-Identifier: Apache-2.0
"""What every verb is made of: exit codes, refusals as one sentence, ``--json`` and ``--quiet``, an
example at the end of its help.
"""

import functools
import io
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from message_store.base.clock import stopwatch_s
from message_store.base.errors import DelayStoreError, RefusedStoresError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delaywheel.terminal.render.output import Output
    from delaywheel.terminal.render.progress import StageProgress

DONE = 0
"""Everything asked for was done, and nothing is wrong."""
FINDINGS = 1
"""Something is wrong that the command was asked to look for: differences, unreadable messages."""
USAGE = 2
"""The command was not understood, or does not fit the store: level table, now."""
SOURCE_UNREADABLE = 3
"""The source is missing, of a kind that is not read, in use, crashed, or has lost records."""
TARGET_UNWRITABLE = 4
"""The target cannot be written or continued, or what it takes is missing: Java, Spark, memory."""
STOPPED_BY_POLICY = 5
"""Messages would have been left behind: bad records, or a wheel that is not empty."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM; the same conversion continues."""

Settings = tuple[tuple[str, str], ...]
"""What a command was told of Spark: names and values."""

NO_STDOUT = "standard output is closed"

PATIENCE_S = 1.0
"""Nobody waits for the compiler longer than this without being told."""

LOOK_EVERY_S = 0.2

# By name, because importing some of these classes would start to load Spark. The first of an
# error's own classes, from the most special to the most general, that is in the table decides.
EXIT_CODES = {
    "OutputError": TARGET_UNWRITABLE,
    "BadRecordsError": STOPPED_BY_POLICY,
    "WheelNotEmptyError": STOPPED_BY_POLICY,
    "LeftBehindError": STOPPED_BY_POLICY,
    "OptionsError": USAGE,
    "PlanError": TARGET_UNWRITABLE,
    "UnsupportedDelayError": USAGE,
    "SharedKeyError": USAGE,
    "JavaMissingError": TARGET_UNWRITABLE,
    "TargetError": TARGET_UNWRITABLE,
    "MigrationError": TARGET_UNWRITABLE,
    "SourceError": SOURCE_UNREADABLE,
    "FormatError": SOURCE_UNREADABLE,
    "DelayStoreError": SOURCE_UNREADABLE,
}


def exit_code(error: DelayStoreError) -> int:
    """The exit code of an error that is meant for people; of several the highest."""
    if isinstance(error, RefusedStoresError):
        return max(map(exit_code, error.errors))
    return next(
        EXIT_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in EXIT_CODES
    )


_GOES_ON = "the same command goes on where it stopped"
_WHEN_STOPPED = {
    "convert": _GOES_ON,
    "retire": _GOES_ON,
    "rollback": _GOES_ON,
    "put-back": _GOES_ON,
    "generate": "what was made is removed again",
    "plain": "what was made is removed again",
    "consume": "the next consume receives again what was not acknowledged",
}
"""What became of the work of a verb that was stopped in the middle."""


def _print_and_end(ctx: click.Context, text: str) -> None:
    """Print a help or version text and end; a reader that has gone has seen enough."""
    if sys.stdout is None:
        click.echo(NO_STDOUT, err=True)
        ctx.exit(TARGET_UNWRITABLE)
    try:
        click.echo(text, color=ctx.color)
    except OSError as error:
        sys.stdout = io.StringIO()  # what is left in its buffer must not fail once more
        if not isinstance(error, BrokenPipeError):
            click.echo(f"standard output cannot be written: {error.strerror}", err=True)
            ctx.exit(TARGET_UNWRITABLE)
    ctx.exit()


def _print_help(ctx: click.Context, _flag: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        _print_and_end(ctx, ctx.get_help())


def _print_version(ctx: click.Context, _flag: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from delaywheel import __version__

        _print_and_end(ctx, f"delaywheel, version {__version__}")


class _Helpful(click.Command):
    """A command with ``-h``, whose help ends in a sentence where it cannot be printed."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.context_settings["help_option_names"] = ["-h", "--help"]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """The flag that prints the help."""
        flag = super().get_help_option(ctx)
        if flag is not None:
            flag.callback = _print_help
        return flag


class Verbs(_Helpful, click.Group):
    """Turns what the library refuses into a sentence and exit code; a bug keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        if sys.stdout is None:
            click.echo(NO_STDOUT, err=True)
            ctx.exit(TARGET_UNWRITABLE)
        try:
            with _ended_as_by_ctrl_c():
                return super().invoke(ctx)
        except DelayStoreError as error:
            _output(ctx).failure(error)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            _say_stopped("interrupted", ctx)
            ctx.exit(INTERRUPTED)
        except MemoryError:
            _say_stopped("out of memory", ctx)
            ctx.exit(TARGET_UNWRITABLE)


def _say_stopped(why: str, ctx: click.Context) -> None:
    """Why a command stopped, and what that means for its work."""
    left = _WHEN_STOPPED.get(ctx.invoked_subcommand or "")
    click.echo(why if left is None else f"{why}; {left}", err=True)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM, as a service manager or a shutdown sends it, tell people what Ctrl-C would."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _output(ctx: click.Context, *, as_json: bool = False, is_quiet: bool = False) -> "Output":
    """The one Output of a run."""
    from delaywheel.terminal.render.output import Output

    root = ctx.find_root()
    if root.obj is None:
        root.obj = Output(as_json=as_json, is_quiet=is_quiet)
    output: Output = root.obj
    return output


@click.group(cls=Verbs)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Moves pending messages from RocketMQ's 18 delay levels into a RocketMQ 5 timer wheel.

    Works on the store directory of a stopped broker, or a copy of it; the source is only read.
    It also contains delay engines and consumer groups; see schedule, run, consume, cancel and read.
    schedule, run, consume, cancel, reschedule and dead-letters --redrive write to their store.
    """
    # Whatever goes wrong in a library comes back as an exception; its log lines would only add
    # tracebacks to it, as Py4J does when a run is interrupted.
    logging.basicConfig(handlers=[logging.NullHandler()])
    _allow_many_files()


def _allow_many_files() -> None:
    """Raise the limit of open files, as a JVM does: a store may have more than a shell's 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def verb(example: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command with ``--json``, ``--quiet`` and an example; its function gets the Output first."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, is_quiet: bool, **given: Any) -> None:
            ctx = click.get_current_context()
            function(_output(ctx, as_json=as_json, is_quiet=is_quiet), **given)

        quiet = click.option("--quiet", "is_quiet", is_flag=True, help="No progress on stderr.")
        json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        name = function.__name__.removesuffix("_").replace("_", "-")
        lines = "\n".join(f"  {line}" for line in example.splitlines())
        return main.command(name, cls=_Helpful, epilog=f"\b\nExample:\n{lines}")(json(quiet(run)))

    return decorate


@contextmanager
def loading(output: "Output") -> Iterator[None]:
    """Around the imports of compiled code: while kernels are compiled, and that takes long, say so,
    once a command. A slow disk is no reason to.
    """
    with output.progress() as progress:
        is_over = threading.Event()

        def explain() -> None:
            while not (output.has_said_loading or is_over.wait(LOOK_EVERY_S)):
                sentence = _compiling()
                if sentence is not None:
                    output.has_said_loading = True
                    progress.say(sentence)

        looking = threading.Thread(target=explain, daemon=True)
        looking.start()
        try:
            yield
        finally:
            is_over.set()
            looking.join()


def _compiling() -> str | None:
    """What to say of kernels that this process has compiled for too long; None for nothing."""
    cache = sys.modules.get("message_store.kernels.cache")  # to import it here would load numba
    compiled = getattr(cache, "COMPILED", None)
    if compiled is None or compiled.seconds < PATIENCE_S:
        return None
    if not compiled.is_kept:
        return (
            "compiling kernels, as each run does: they cannot be kept. Set NUMBA_CACHE_DIR to a"
            " directory of yours that is writable"
        )
    return "compiling kernels, which the first run of a verb does; it takes some seconds"


@contextmanager
def started_spark(
    progress: "StageProgress", master: str | None, conf: Settings
) -> Iterator[tuple["SparkSession | None", float]]:
    """A session, and the seconds that its start took; none without a master: no Spark is needed."""
    if master is None:
        yield None, 0.0
        return
    from migrate.spark.session import spark_session

    started_s = stopwatch_s()
    progress.say("starting Spark")
    with spark_session(master, dict(conf)) as spark:
        yield spark, stopwatch_s() - started_s
