# SPDX-License-Identifier: Apache-2.0
"""The verbs of consumer groups: ``consume``, ``groups`` and ``dead-letters``.

``consume``, and ``dead-letters --redrive``, open the store as its engine does, and so have it
alone. The others only look, also while another process has it.
"""

import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import attrs
import click
from click.core import ParameterSource

from delaywheel.terminal.options.conversion import STORE, now_option
from delaywheel.terminal.options.engine import Engine, engine_options, opened
from delaywheel.terminal.options.loop import loop_options, told_loop
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.options.types import DURATION, errors_of_flag
from delaywheel.terminal.render.engine import group_lines, nothing_there_line
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from message_store.base.clock import ManualClock, SystemClock
from message_store.base.durations import DURATION_FORMS
from message_store.base.errors import DelayStoreError
from message_store.base.printable import printable

if TYPE_CHECKING:
    from consumer_groups import GroupStore, Received
    from delaywheel.terminal.render.output import Output

POLL_MS = 100


class _NotHandledError(DelayStoreError):
    """The command ended with another code than 0, or nobody read the message."""


@verb(
    "delaywheel consume /tmp/orders orders --group billing --limit 1\n"
    'delaywheel consume /tmp/orders orders --group billing --exec "tee -a /tmp/cancelled" --for 1s'
)
@click.argument("store", type=STORE)
@click.argument("topic")
@click.option(
    "--group", required=True, help="Consumer group; a new one begins at the first message."
)
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run this for each message, with its body on stdin. Exit code 0 acknowledges; any other is"
    " a retry. No shell reads it; sh -c '...' is one. Without it, each message is printed and"
    " acknowledged.",
)
@click.option("--tags", help='Only messages with these tags, such as "paid || sent".')
@click.option("--limit", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--for", "for_ms", type=DURATION, help=f"End after so long, {DURATION_FORMS}.")
@loop_options
@engine_options
def consume(
    output: "Output",
    store: Path,
    topic: str,
    group: str,
    command: str | None,
    tags: str | None,
    limit: int | None,
    for_ms: int | None,
    address: tuple[str, int] | None,
    log_events: bool,
    **given: Any,
) -> None:
    """Receive the messages of a topic for a consumer group, until Ctrl-C, --limit or --for.

    Delivers what becomes due meanwhile. Each message is printed as one JSON object a line, unless
    --exec is given. The first retry waits for the delay of level 3, the next for level 4 and so on.
    After 16 retries a message is a dead letter.

    Ctrl-C waits for the command that --exec runs. If Ctrl-C ends that too, its message is neither
    acknowledged nor retried: the next consume receives it again.

    No other process can schedule meanwhile. So a topic into which nothing was put, and for which
    nothing waits, is refused.

    With --now the clock is simulated, and the command ends at that time, or --for later.
    """
    with loading(output):
        from consumer_groups import consumer_group, run_consumers
        from consumer_groups.runner import Until
    _require_names(topic, group)
    words = None if command is None else _command(command)
    with opened(output, store, **given) as (engine, clock):
        _require_topic(engine, store, topic)
        until_ms = None if for_ms is None else clock.now_ms() + for_ms
        if until_ms is None and isinstance(clock, ManualClock):
            until_ms = clock.now_ms()
        seen = 0

        def handle(message: "Received") -> None:
            nonlocal seen
            seen += 1
            _hand_over(output, message, words)

        def is_over() -> bool:
            return not output.has_reader or (limit is not None and seen >= limit)

        consumers = consumer_group(cast("GroupStore", engine), group)
        with told_loop(output, store, engine, address=address, log_events=log_events):
            worked = run_consumers(
                cast("GroupStore", engine),
                {(topic, consumers): handle},
                stop=Until(clock, until_ms, is_over),
                tags=tags,
                poll_ms=POLL_MS,
            )
    output.consumed(worked.handled, worked.retried)
    click.get_current_context().exit(FINDINGS if worked.retried else DONE)


def _require_names(topic: str, group: str) -> None:
    """Refuse a topic of which no group can receive, and a name that no group can have."""
    from consumer_groups.received import check_group, check_receivable

    with errors_of_flag("TOPIC"):
        check_receivable(topic)
    with errors_of_flag("--group"):
        check_group(group)


def _require_topic(engine: Engine, store: Path, topic: str) -> None:
    """Refuse a topic that gets no message however long somebody waits."""
    from message_store.reading.topic_listing import topics_with_queues

    if not engine.topic(topic).ranges() and next(engine.pending(topic=topic), None) is None:
        there = nothing_there_line(topic, None, topics_with_queues(store))
        raise click.BadParameter(f"{there}, and nothing waits for it", param_hint="TOPIC")


def _command(text: str) -> list[str]:
    """The words of a command that is there: a typing error must not cost each message a retry."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--exec") from error
    if not words or shutil.which(words[0]) is None:
        raise click.BadParameter(f"{text!r}: no such command", param_hint="--exec")
    return words


def _hand_over(output: "Output", message: "Received", words: list[str] | None) -> None:
    """Print a message, or run the command; raises where the message was not worked on."""
    if words is None:
        output.received(message)
        if not output.has_reader:
            raise _NotHandledError("nobody reads the messages any more")
        return
    name = message.unique_key or message.stored.offset_message_id
    with _noting_signals() as signals:
        done = subprocess.run(words, input=message.body, check=False)
    if done.returncode and signals:
        output.warn(
            f"{name}: {words[0]} was stopped with consume; the message is not acknowledged, and the"
            " next consume receives it again"
        )
        raise KeyboardInterrupt
    if done.returncode:
        output.warn(f"{name}: {words[0]} ended with exit code {done.returncode}; it is given back")
        raise _NotHandledError(f"exit code {done.returncode}")


@contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """The signals that ask for an end meanwhile; whoever waits for them gets them as well."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in before:
        signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@verb("delaywheel groups /tmp/orders")
@click.argument("store", type=STORE)
@place_options("store", has_target=False)
@now_option("Reference time:")
def groups(output: "Output", store: Path, now_ms: int) -> None:
    """List the consumer groups of a store, and how far each is behind in each topic.

    Ready are the messages that it can receive now. Of its retries some are ready, and others wait
    for their time. The store is only read, also while another process has it open. Which messages
    are in flight only that process knows: they are counted as ready then.
    """
    with loading(output):
        from migrate.look.groups import look_at_groups
    output.tell_of_writer(store)
    found = look_at_groups(store, now_ms=now_ms)
    output.result(lambda: {"groups": list(map(attrs.asdict, found))}, group_lines(found))


def require_group(store: Path, group: str, now_ms: int, hint: str) -> None:
    """Refuse a group that the store does not know."""
    from migrate.look.groups import groups_in

    if group not in (known := groups_in(store, now_ms=now_ms)):
        names = printable(f"; there are {', '.join(known)}") if known else "; there is none"
        raise click.BadParameter(f"no group {group!r}{names}", param_hint=hint)


@verb("delaywheel dead-letters /tmp/orders billing --redrive")
@click.argument("store", type=STORE)
@click.argument("group")
@click.option("--redrive", is_flag=True, help="Let the group receive them again.")
@engine_options
def dead_letters(
    output: "Output", store: Path, group: str, redrive: bool, now_ms: int | None, **given: Any
) -> None:
    """List the dead letters of a consumer group, oldest first, one JSON object a line.

    Nothing is delivered by it: what was rejected shows when the store was advanced, by run or
    consume. The store is only read, also while another process has it open.

    With --redrive it is opened for writing, and each letter is received again by the next consume,
    as a message that was never retried. Letters that cannot be read are named on stderr, and make
    the exit code 1.
    """
    with loading(output):
        from consumer_groups import consumer_group
        from migrate.look.groups import look_at_dead_letters
    asked = click.get_current_context().get_parameter_source
    for name in given:
        if not redrive and asked(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --redrive")
    look_ms = SystemClock().now_ms() if now_ms is None else now_ms
    require_group(store, group, look_ms, "GROUP")
    damaged: list[str] = []

    def tell(where: str) -> None:
        damaged.append(where)
        output.warn(f"cannot be read: {where}")

    if redrive:
        with opened(output, store, now_ms=now_ms, **given) as (engine, _clock):
            consumers = consumer_group(cast("GroupStore", engine), group)
            for letter in consumers.dead_letters(tell):
                output.received(letter)
                consumers.redrive(letter)
    else:
        output.tell_of_writer(store)
        for letter in look_at_dead_letters(store, group, tell, now_ms=look_ms):
            output.received(letter)
    click.get_current_context().exit(FINDINGS if damaged else DONE)
