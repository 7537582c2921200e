# SPDX-License-Identifier: Apache-2.0
"""``inspect`` and ``pending``: what a store is, and which messages are pending in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import (
    STORE,
    now_option,
    offsets_option,
    require_window,
    window_options,
)
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.verb import DONE, FINDINGS, SOURCE_UNREADABLE, loading, verb
from message_store.files.store_root import StoreRoot

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


@verb("delaywheel inspect /data/rocketmq/store")
@click.argument("store", type=STORE)
@place_options("store")
@offsets_option()
@now_option("Reference time for overdue:")
def inspect(output: "Output", store: Path, offsets: str, now_ms: int) -> None:
    """Say what a directory is: version, clean or crashed, messages in its levels and wheel.

    Ends with exit code 3 where the commit log has lost records: numbers may then be too high. So it
    does where the number of pending messages cannot be told.
    """
    with loading(output):
        from delaywheel.terminal.render.inspection import inspection_lines
        from migrate.look.inspect import inspect_store
        from migrate.source.condition import log_losses
    output.tell_of_writer(store)
    with output.progress() as progress:
        progress("reading", 0, 0)
        inspection = inspect_store(store, now_ms=now_ms, offsets=offsets)
    output.result(inspection.as_json, inspection_lines(inspection))
    if not output.as_json:
        output.warnings(inspection.problems)
    has_lost = inspection.beyond_log or log_losses(StoreRoot(store))
    is_unknown = inspection.pending is None
    click.get_current_context().exit(SOURCE_UNREADABLE if has_lost or is_unknown else DONE)


@verb("delaywheel pending /data/rocketmq/store --level 18 --limit 5")
@click.argument("store", type=STORE)
@place_options("store")
@click.option("--topic", help="Only messages for this topic.")
@click.option("--level", type=click.IntRange(min=1), help="Only this level.")
@click.option("--key", help="Only messages with this unique key, or with this among their keys.")
@window_options
@click.option("--limit", type=click.IntRange(min=0), help="Stop after so many messages.")
@offsets_option()
@now_option("Reference time:")
def pending(output: "Output", store: Path, offsets: str, now_ms: int, **filters: Any) -> None:
    """List the messages that wait in a store, the next due first.

    One JSON object a line; on a terminal, unless --json is given, one message a line for people.
    Messages that cannot be read are named on stderr, and end the command with exit code 1. A commit
    log that has lost records ends it with exit code 3.
    """
    require_window(filters["due_after_ms"], filters["due_before_ms"])
    with loading(output):
        from migrate.look.choices import absent_choices
        from migrate.look.pending import PendingFilter, pending_messages
        from migrate.source.condition import log_losses
    output.tell_of_writer(store)
    messages = pending_messages(
        store, PendingFilter(**filters), now_ms=now_ms, offsets=offsets, warn=output.warn
    )
    listed, unreadable = output.pending(messages, now_ms)
    if not (listed or unreadable or filters["limit"] == 0):
        named = ("topic", "level")
        topics, levels = ([filters[name]] if filters[name] is not None else [] for name in named)
        for warning in absent_choices(StoreRoot(store), topics=topics, levels=levels):
            output.warn(warning)
    code = FINDINGS if unreadable else DONE
    if log_losses(StoreRoot(store)):
        code = SOURCE_UNREADABLE
    click.get_current_context().exit(code)
