# SPDX-License-Identifier: Apache-2.0
"""The verbs that use an engine, ``schedule`` and ``run``, and ``read``.

Each is one call of the library, on a store that delaywheel made or that a broker left.
"""

import itertools
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import STORE, now_option
from delaywheel.terminal.options.engine import (
    ENGINE_FLAGS,
    LIMIT_FLAGS,
    Engine,
    engine_options,
    limit_options,
    opened,
)
from delaywheel.terminal.options.loop import loop_options, told_loop
from delaywheel.terminal.options.message import message_options, requested
from delaywheel.terminal.options.message_lines import (
    levels_beyond,
    naming_lines,
    time_due_ms,
    with_due,
)
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.options.types import DURATION, TIME, TIME_FORMS
from delaywheel.terminal.render.engine import level_lowered_line, nothing_there_line
from delaywheel.terminal.render.printer import OutputError
from delaywheel.terminal.verb import DONE, FINDINGS, INTERRUPTED, loading, verb
from message_store.base.clock import ManualClock
from message_store.base.durations import DURATION_FORMS
from message_store.base.errors import DelayStoreError, FormatError
from message_store.base.printable import counted
from message_store.files.store_root import StoreRoot
from message_store.interface.runner import DEFAULT_POLL_MS, run_store
from message_store.reading.engine_choice import EngineName, choose_engine

if TYPE_CHECKING:
    from delaywheel.terminal.options.message_lines import Request
    from delaywheel.terminal.render.output import Output
    from message_store.interface.delay_store import Receipt

FLUSH_EVERY_MS = 1_000
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAP_MS = 3_600_000
"""How far a clock by hand leaps where nothing is due."""


@verb(
    "delaywheel schedule /tmp/orders --engine wheel --topic orders --body 'cancel 42' \\\n"
    "    --after 90s --tags timeout --keys 42"
)
@click.argument("store", type=STORE)
@message_options
@click.option(
    "--once",
    is_flag=True,
    help="Store nothing if the log has a message with this --unique-key, whatever became of it, or"
    " cannot be read where it may have one.",
)
@limit_options
@engine_options
def schedule(output: "Output", store: Path, once: bool, **given: Any) -> None:
    """Store a message now that goes into its topic later.

    Prints when it will be delivered, and the handle by which it can be cancelled. A store that does
    not exist is made by the engine that --engine names. With --json each is an object on a line of
    its own; if --once stores nothing, that is {"unique_key": KEY, "stored": false}.

    The properties by which clients ask brokers for a delay do it here too: --property
    TIMER_DELAY_SEC=90 takes the place of --after 90s.

    With --lines, every line is an object such as {"topic": "orders", "body": "cancel 42", "after":
    "90s"}. Its fields are named as the flags are; "body_base64" takes the place of "body" for what
    is no text, and "properties" is an object.
    """
    how = {name: given.pop(name) for name in ENGINE_FLAGS}
    limits = {name: given.pop(name) for name in LIMIT_FLAGS}
    alias: bool = limits["start_deliver_time_alias"]
    key = given["unique_key"]
    if once and not key:
        raise click.UsageError("--once needs --unique-key: it tells whether the message is there")
    requests = requested(start_deliver_time_alias=alias, **given)
    with opened(output, store, may_be_new=True, limits=limits, **how) as (engine, clock):
        if once and _is_known(engine, key):
            output.warn(f"{key}: a message with this key is in the log; nothing is stored")
            output.scheduled_before(key)
            return
        now_ms = clock.now_ms()
        for level in levels_beyond(requests, engine.levels):
            output.warn(level_lowered_line(level, engine.levels))
        with naming_lines(requests):
            receipts = _scheduled(engine, requests, now_ms, alias)
    try:
        output.scheduled(receipts, now_ms)
    except OutputError as error:  # who tries again would have them twice
        stored = counted(len(receipts), "message is stored", "messages are stored")
        raise OutputError(f"{error}; {stored} all the same") from error


def _is_known(engine: Any, unique_key: str) -> bool:
    """Whether any record of the log has this key. Raises FormatError where only one that cannot be
    read may have it.
    """
    from message_store.life.trace import trace_log

    unread: list[int] = []
    with engine.lock:
        is_known = bool(trace_log(engine.live, unique_key, unread.append))
    if unread and not is_known:
        raise FormatError(
            f"{unique_key}: the log may have this key, so nothing is stored (without --once it is):"
            " it cannot be read",
            offset=unread[0],
        )
    return is_known


def _scheduled(
    engine: "Engine", requests: "list[Request]", now_ms: int, start_deliver_time_alias: bool
) -> "Sequence[Receipt]":
    """The receipts of one message, or of many, of which all are stored or none."""
    if len(requests) == 1:
        [one] = requests
        return [
            engine.put(one.message) if one.due is None else engine.schedule(one.message, one.due)
        ]
    from message_store.columns.byte_column import int64s
    from message_store.columns.message_batch import MessageBatch

    if all(request.due is None for request in requests):
        made = engine.put_batch(MessageBatch.of(request.message for request in requests))
    else:
        asked = [
            with_due(request, row, now_ms, start_deliver_time_alias)
            for row, request in enumerate(requests)
        ]
        batch = MessageBatch.of(message for message, _ in asked)
        due_ms = [time_due_ms(due, now_ms, engine.levels) for _, due in asked]
        made = engine.schedule_batch(batch, int64s(due_ms))
    return [made.receipt(row) for row in range(len(made))]


@verb("delaywheel run /tmp/orders --json --for 10m")
@click.argument("store", type=STORE)
@click.option("--until", "until_ms", type=TIME, help=f"End then: {TIME_FORMS}.")
@click.option("--for", "for_ms", type=DURATION, help=f"End after so long, {DURATION_FORMS}.")
@loop_options
@engine_options
def run(
    output: "Output",
    store: Path,
    until_ms: int | None,
    for_ms: int | None,
    address: tuple[str, int] | None,
    log_events: bool,
    **given: Any,
) -> None:
    """Deliver what is due into its topics, when it is due, until Ctrl-C, --until or --for.

    With --json each delivery is an object on a line of its own. What was delivered is synced to the
    disk every second. The store is locked while this runs; no other process can schedule or cancel.
    A program that needs both opens the store itself (docs/ENGINES.md).

    With --now the clock is simulated: everything due by that time, or by --until or --for, is
    delivered immediately.

    Messages that cannot be read are named at the end, and make the exit code 1.
    """
    if until_ms is not None and for_ms is not None:
        raise click.UsageError("--until and --for cannot be combined")
    _warn_of_gone_queues(output, StoreRoot(store), given["engine"])
    with _signals() as signals, opened(output, store, **given) as (engine, clock):
        is_by_hand = isinstance(clock, ManualClock)
        if for_ms is not None:
            until_ms = clock.now_ms() + for_ms
        elif until_ms is None and is_by_hand:
            until_ms = clock.now_ms()
        told = told_loop(output, store, engine, address=address, log_events=log_events)
        with told, output.deliveries() as feed:
            delivered = run_store(
                engine,
                clock,
                feed,
                stop=lambda: bool(signals) or not output.has_reader,
                until_ms=until_ms,
                poll_ms=LEAP_MS if is_by_hand else DEFAULT_POLL_MS,
                flush_every_ms=None if is_by_hand else FLUSH_EVERY_MS,
            )
        next_due_ms, now_ms = engine.next_due_ms(), clock.now_ms()
        undelivered = engine.undelivered()
    output.ran(delivered, next_due_ms, now_ms, signals[0] if signals else None)
    for finding in undelivered:
        output.warn(f"{finding.where}: {finding.problem}")
    stopped_early = bool(signals) and until_ms is not None
    code = FINDINGS if undelivered else DONE
    click.get_current_context().exit(INTERRUPTED if stopped_early else code)


def _warn_of_gone_queues(output: "Output", root: StoreRoot, engine: EngineName | None) -> None:
    """Say of levels that lost their queue: what waited there is in the log alone, and stays."""
    with loading(output):
        from migrate.source.condition import gone_queue_warnings
    with suppress(DelayStoreError):  # what stands in the way is said by who opens the store
        if choose_engine(root, engine) == "levels":
            for warning in gone_queue_warnings(root):
                output.warn(warning)


@contextmanager
def _signals() -> Iterator[list[str]]:
    """The name of the first SIGINT, SIGTERM or SIGHUP; a second signal acts as usual."""
    seen: list[str] = []
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(signal.Signals(number).name)
        restore()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as in the background of a shell, and under nohup
            signal.signal(number, note)
    try:
        yield seen
    finally:
        restore()


@verb("delaywheel read /tmp/orders orders --queue-id 0 --from 0 --limit 5")
@click.argument("store", type=STORE)
@click.argument("topic")
@click.option("--queue-id", type=click.IntRange(min=0), help="Only this queue; else all of them.")
@click.option(
    "--from",
    "from_offset",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Begin at this queue offset of each queue.",
)
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many messages.")
@place_options("store", has_target=False)
@now_option("Reference time:")
def read(
    output: "Output",
    store: Path,
    topic: str,
    queue_id: int | None,
    limit: int | None,
    now_ms: int,
    **which: Any,
) -> None:
    """List the messages that stand in a topic, as a consumer would get them.

    One JSON object a line; on a terminal, unless --json is given, one message a line for people.
    The store is only read: it may be a broker's. Messages that cannot be read are named on stderr,
    and end the command with exit code 1.
    """
    with loading(output):
        from message_store.reading.topic_listing import list_topic, topics_with_queues
    output.tell_of_writer(store)
    topics = topics_with_queues(store)
    if topic not in topics or queue_id not in (None, *topics[topic]):
        output.warn(f"{store}: {nothing_there_line(topic, queue_id, topics)}")
    messages = itertools.islice(list_topic(store, topic, queue_id=queue_id, **which), limit)
    unreadable = output.messages(messages, now_ms)
    click.get_current_context().exit(FINDINGS if unreadable else DONE)
