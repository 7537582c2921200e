# SPDX-License-Identifier: Apache-2.0
"""The verbs of consumer groups: ``consume``, ``groups`` and ``dead-letters``.

Each opens the store as its engine does, and so has it alone.
"""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from delaywheel.terminal.options.conversion import STORE
from delaywheel.terminal.options.engine import engine_options, opened
from delaywheel.terminal.options.loop import loop_options, told_loop
from delaywheel.terminal.options.types import DURATION
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from message_store.base.clock import ManualClock
from message_store.base.durations import DURATION_FORMS
from message_store.base.errors import DelayStoreError
from message_store.base.printable import counted

if TYPE_CHECKING:
    from consumer_groups import GroupStore, Received
    from delaywheel.terminal.render.output import Output

POLL_MS = 100


class _NotHandledError(DelayStoreError):
    """The command ended with another code than 0, or nobody read the message."""


@verb("delaywheel consume /tmp/orders orders --group billing --exec ./cancel-order --for 10m")
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

    With --now the clock is simulated, and the command ends at that time, or --for later.
    """
    with loading(output):
        from consumer_groups import consumer_group, run_consumers
    words = None if command is None else _command(command)
    with opened(output, store, **given) as (engine, clock):
        until_ms = None if for_ms is None else clock.now_ms() + for_ms
        if until_ms is None and isinstance(clock, ManualClock):
            until_ms = clock.now_ms()
        seen = 0

        def handle(message: "Received") -> None:
            nonlocal seen
            seen += 1
            _hand_over(output, message, words)

        def is_over() -> bool:
            is_late = until_ms is not None and clock.now_ms() > until_ms
            return is_late or not output.has_reader or (limit is not None and seen >= limit)

        consumers = consumer_group(cast("GroupStore", engine), group)
        name = given["engine"]
        with told_loop(output, store, engine, name, address=address, log_events=log_events):
            worked = run_consumers(
                cast("GroupStore", engine),
                {(topic, consumers): handle},
                stop=is_over,
                tags=tags,
                poll_ms=POLL_MS,
            )
    output.consumed(worked.handled, worked.retried)
    click.get_current_context().exit(FINDINGS if worked.retried else DONE)


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
    done = subprocess.run(words, input=message.body, check=False)
    if done.returncode:
        name = message.unique_key or message.stored.offset_message_id
        output.warn(f"{name}: {words[0]} ended with exit code {done.returncode}; it is retried")
        raise _NotHandledError(f"exit code {done.returncode}")


@verb("delaywheel groups /tmp/orders")
@click.argument("store", type=STORE)
@engine_options
def groups(output: "Output", store: Path, **given: Any) -> None:
    """List the consumer groups of a store, and how far each is behind in each topic.

    Ready are the messages that it can receive now. Retries that still wait, and dead letters, are
    not counted. The store is opened for writing: of one that is to be converted, look at a copy.
    """
    with loading(output):
        from consumer_groups import group_names, group_topics
    with opened(output, store, **given) as (engine, _clock):
        found = [
            (name, topic, lag)
            for name in group_names(cast("GroupStore", engine))
            for topic, lag in group_topics(cast("GroupStore", engine), name).items()
        ]
    facts = [{"group": name, "topic": topic, "ready": lag.ready} for name, topic, lag in found]
    output.result(
        lambda: {"groups": facts},
        (f"{name}  {topic}: {counted(lag.ready, 'message')} ready" for name, topic, lag in found),
    )


@verb("delaywheel dead-letters /tmp/orders billing --redrive")
@click.argument("store", type=STORE)
@click.argument("group")
@click.option("--redrive", is_flag=True, help="Let the group receive them again.")
@engine_options
def dead_letters(output: "Output", store: Path, group: str, redrive: bool, **given: Any) -> None:
    """List the dead letters of a consumer group, oldest first, one JSON object a line.

    Nothing is delivered by it: what was rejected shows when the store was advanced, by run or
    consume. With --redrive each is received again by the next consume, as a message that was never
    retried. The store is opened for writing: of one that is to be converted, look at a copy.
    """
    with loading(output):
        from consumer_groups import consumer_group, group_names
    with opened(output, store, **given) as (engine, _clock):
        if group not in (known := group_names(cast("GroupStore", engine))):
            names = f"; there are {', '.join(known)}" if known else ""
            raise click.BadParameter(f"no group {group}{names}", param_hint="GROUP")
        consumers = consumer_group(cast("GroupStore", engine), group)
        for letter in consumers.dead_letters():
            output.received(letter)
            if redrive:
                consumers.redrive(letter)
