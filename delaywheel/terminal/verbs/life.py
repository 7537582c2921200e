# SPDX-License-Identifier: Apache-2.0
"""``trace``, ``state``, ``cancel`` and ``reschedule``: one message, by its handle or unique key."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from delaywheel.terminal.options.conversion import STORE, now_option
from delaywheel.terminal.options.engine import Engine, engine_options, opened
from delaywheel.terminal.options.message import due_options
from delaywheel.terminal.options.message_lines import due_of
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.options.types import HANDLE, errors_of_flag
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from delaywheel.terminal.verbs.groups import require_group
from message_store.base.errors import SharedKeyError
from message_store.files.store_root import StoreRoot
from message_store.format.recall_handle import RecallHandle
from message_store.interface.delay_store import Cancellation, Receipt
from message_store.reading.engine_choice import choose_engine

if TYPE_CHECKING:
    from consumer_groups import GroupStore
    from delaywheel.terminal.render.output import Output

KEY_HELP = "Every pending message with this unique key, without a handle."


@verb("delaywheel trace /tmp/orders order-42")
@click.argument("store", type=STORE)
@click.argument("unique_key", metavar="KEY", required=False)
@click.option("--id", "offset_id", help="The message of which a record has this offset message id.")
@place_options("store", has_target=False)
@click.option("--full", is_flag=True, help="With body, tags, keys and properties of each record.")
@now_option("Reference time:")
def trace(
    output: "Output",
    store: Path,
    unique_key: str | None,
    offset_id: str | None,
    full: bool,
    now_ms: int,
) -> None:
    """List the records of one message: scheduled, rolled, cancelled, delivered, retried, dead.

    The log is read once, from its first record on, and only read: the store may be a broker's. Of
    messages that share a unique key, each has a first_offset of its own. One JSON object a line; on
    a terminal, unless --json is given, one record a line for people.

    A cancel in a delay level leaves no record. Ends with exit code 1 where nothing is found, or the
    log cannot be read everywhere.
    """
    if (unique_key is None) == (offset_id is None):
        raise click.UsageError("give exactly one of KEY and --id")
    with loading(output):
        from message_store.life.trace import offset_of_id, trace_directory, trace_offset_id
    if offset_id is not None:
        with errors_of_flag("--id"):
            offset_of_id(offset_id)
    output.tell_of_writer(store)
    unread: list[int] = []
    if offset_id is not None:
        steps = trace_offset_id(store, offset_id, unread.append)
    else:
        steps = trace_directory(store, unique_key or "", unread.append)
    output.trace(steps, now_ms, is_full=full)
    if not steps:
        what = f"id {offset_id}" if unique_key is None else f"unique key {unique_key}"
        output.warn(f"{store}: no record of the log has the {what}{_log_start(store)}")
    lost = [*_unread(store, unread)]
    output.warnings(lost)
    click.get_current_context().exit(DONE if steps and not lost else FINDINGS)


@verb("delaywheel state /tmp/orders order-42 --group billing")
@click.argument("store", type=STORE)
@click.argument("unique_key", metavar="KEY")
@place_options("store", has_target=False)
@click.option("--group", help="As this consumer group sees it; without it, as all of them do.")
@now_option("Reference time:")
def state(output: "Output", store: Path, unique_key: str, group: str | None, now_ms: int) -> None:
    """Say in one word where in its life the newest message with a unique key is.

    It is pending until its time comes, then delivered until a group acknowledges it; or it is
    cancelled, dead or unknown. A message that a group gave back is pending again. Of several groups
    one that has not acknowledged it decides.

    The store is only read, also while another process has it open. Which messages are in flight
    only that process knows: they are delivered here. Ends with exit code 1 for unknown, and where
    the log cannot be read everywhere.
    """
    with loading(output):
        from message_store.interface.message_life import MessageState
        from migrate.look.groups import look_at_state
    output.tell_of_writer(store)
    if group is not None:
        require_group(store, group, now_ms, "--group")
    unread: list[int] = []
    found = look_at_state(store, unique_key, group, unread.append, now_ms=now_ms)
    is_unknown = found is MessageState.UNKNOWN
    output.result(lambda: {"unique_key": unique_key, "state": found.value}, [found.value])
    if is_unknown and (start := _log_start(store)):
        output.warn(f"{store}{start}")
    lost = [*_unread(store, unread)]
    output.warnings(lost)
    click.get_current_context().exit(FINDINGS if is_unknown or lost else DONE)


def _unread(store: Path, places: list[int]) -> Iterator[str]:
    """That a record of the message may be where the log cannot be read, or was lost."""
    from migrate.source.condition import log_losses

    yield from log_losses(StoreRoot(store))
    if places:
        more = f" and at {len(places) - 1:,} more" if places[1:] else ""
        where = f"{store}: the log cannot be read at offset {places[0]:,}{more}"
        yield f"{where}; a record there may be of this message"


def _log_start(store: Path) -> str:
    """Of a log without its first files, that they may have held the message."""
    from message_store.files.log_row import open_log

    with open_log(StoreRoot(store)) as log:
        first = log.min_offset
    return f"; the log begins at offset {first:,}, what was before is not known" if first else ""


@verb("delaywheel cancel /tmp/orders --key order-42")
@click.argument("store", type=STORE)
@click.argument("handles", type=HANDLE, nargs=-1, metavar="[HANDLE...]")
@click.option("--key", help=KEY_HELP)
@engine_options
def cancel(
    output: "Output", store: Path, handles: tuple[str, ...], key: str | None, **given: Any
) -> None:
    """Cancel messages by the handles that schedule printed, or by their unique key.

    Says of each that it was cancelled, already delivered, or never existed; on a wheel also that it
    was already cancelled. Ends with exit code 1 unless all were cancelled, now or before, and where
    no pending message has the key.
    """
    if bool(handles) == (key is not None):
        raise click.UsageError("give either handles or --key")
    with _opened(output, store, handles, **given) as (engine, clock):
        leaves_markers = choose_engine(StoreRoot(store), given["engine"]) != "levels"
        which = handles if key is None else _receipts(engine, key)
        answers = [(each, *_cancelled(engine, each, leaves_markers)) for each in which]
        now_ms = clock.now_ms()
    for each, answer, is_new in answers:
        handle = each if isinstance(each, str) else each.handle
        output.cancellation(handle, answer, now_ms, is_new=is_new)
    if not answers:
        output.warn(f"{store}: no pending message has the unique key {key}")
    all_cancelled = all(answer is Cancellation.CANCELLED for _each, answer, _is_new in answers)
    click.get_current_context().exit(DONE if all_cancelled and answers else FINDINGS)


def _opened(output: "Output", store: Path, handles: tuple[str, ...], **given: Any) -> Any:
    """The store, open as that of the broker that the handles name."""
    names = {RecallHandle.parse(handle).broker_name for handle in handles}
    if len(names) > 1:
        raise click.UsageError(f"handles of {len(names)} brokers; a store is one broker's")
    return opened(output, store, **given, broker_name=next(iter(names), None))


def _receipts(engine: Engine, key: str) -> list[Receipt]:
    from message_store.life.by_key import find_receipts

    return find_receipts(cast("GroupStore", engine), key)


def _cancelled(
    engine: Engine, which: Receipt | str, leaves_markers: bool
) -> tuple[Cancellation, bool]:
    """The answer, and whether it may be new: a wheel writes a marker then, levels write nothing."""
    log = engine.live.log
    count = log.append_count
    answer = engine.cancel(which)
    return answer, not leaves_markers or log.append_count > count


@verb("delaywheel reschedule /tmp/orders --key order-42 --after 10m")
@click.argument("store", type=STORE)
@click.argument("handle", type=HANDLE, required=False)
@click.option("--key", help="The pending message with this unique key, without a handle.")
@due_options
@engine_options
def reschedule(
    output: "Output",
    store: Path,
    handle: str | None,
    key: str | None,
    after_ms: int | None,
    at_ms: int | None,
    level: int | None,
    **given: Any,
) -> None:
    """Let a pending message wait for another time, in one step that a kill cannot cut in two.

    Prints when it will be delivered now, and its new handle; the old handle names nothing any more.
    Ends with exit code 1 where the message is not pending, and with 2 where several are that share
    the key.
    """
    if (handle is None) == (key is None):
        raise click.UsageError("give either a handle or --key")
    due = due_of(at_ms, after_ms, level)
    handles = () if handle is None else (handle,)
    with _opened(output, store, handles, **given) as (engine, clock):
        which: list[Receipt | str] = [*handles, *(_receipts(engine, key) if key else ())]
        if len(which) > 1 and key:
            topics = {each.topic for each in which if isinstance(each, Receipt)}
            raise SharedKeyError(len(which), ", ".join(sorted(topics)), key)
        answers = [engine.reschedule(each, due) for each in which]
        now_ms = clock.now_ms()
    moved = [each for each in answers if isinstance(each, Receipt)]
    if moved:
        output.scheduled(moved, now_ms)
    for answer in answers:
        if isinstance(answer, Cancellation):
            output.cancellation(handle or "", answer, now_ms, is_new=False)
    if not answers:
        output.warn(f"{store}: no pending message has the unique key {key}")
    click.get_current_context().exit(DONE if moved else FINDINGS)
