# SPDX-License-Identifier: Apache-2.0
"""The verbs that copy a store: ``export`` its pending messages to Parquet, ``plain`` a whole
DLedger member to an ordinary store.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.terminal.options.conversion import (
    STORE,
    given_level_table,
    now_option,
    offsets_option,
    require_window,
    stopped_store_options,
    window_options,
)
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from message_store.base.printable import counted
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from message_store.format.java_numbers import INT_MAX

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


@verb(
    "delaywheel export /data/rocketmq/store waiting.parquet --topic orders --include-body\n"
    "delaywheel export /data/rocketmq/store late.parquet --due-before 2026-01-02T03:04:05Z"
)
@click.argument("store", type=STORE)
@place_options("store", keeps_conf=True)
@click.argument("out", type=STORE, metavar="OUT.parquet")
@click.option(
    "--of",
    "what",
    type=click.Choice(["both", "levels", "wheel"]),
    default="both",
    show_default=True,
    help="Which messages: those in the delay levels, on the timer wheel, or both.",
)
@click.option("--include-body", is_flag=True, help="With the messages' bodies.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; can be given repeatedly.")
@click.option(
    "--level",
    "levels",
    type=click.IntRange(1, INT_MAX),
    multiple=True,
    help="Only this level; can be given repeatedly.",
)
@window_options
@stopped_store_options
@offsets_option()
@now_option("Assumed start time of the broker, which decides which slots it still reads:")
def export(
    output: "Output",
    store: Path,
    out: Path,
    *,
    what: str,
    include_body: bool,
    topics: tuple[str, ...],
    levels: tuple[int, ...],
    due_after_ms: int | None,
    due_before_ms: int | None,
    after_crash: bool,
    level_table: DelayLevels | None,
    broker_conf: Path | None,
    offsets: str,
    now_ms: int,
) -> None:
    """Write the pending messages of STORE to OUT.parquet, a row a message. Nothing else is written.

    OUT.parquet must not exist. A message that cannot be read is a row that says why, in the column
    problem, and ends the command with exit code 1.
    """
    require_window(due_after_ms, due_before_ms)
    if levels and what == "wheel":
        raise click.UsageError("--level chooses among the levels, which --of wheel leaves out")
    with loading(output):
        from migrate.source.condition import loss_warnings
        from migrate.table.export import due_conditions, export_parquet
        from migrate.table.pending_table import Condition, TableOptions
    options = TableOptions(
        now_ms=now_ms,
        offsets=offsets,
        after_crash=after_crash,
        level_table=given_level_table(level_table, broker_conf),
        include_body=include_body,
    )
    conditions = due_conditions(due_after_ms, due_before_ms)
    asked = (("topic", topics), ("level", levels))
    conditions += [Condition(name, "in", list(values)) for name, values in asked if values]
    output.tell_of_writer(store)
    with output.progress() as progress:
        report = export_parquet(
            store, out, options=options, conditions=conditions, what=what, progress=progress
        )
    for warning in loss_warnings(StoreRoot(store)) if what != "wheel" else ():
        output.warn(warning)
    output.warnings(report.warnings)
    if report.unreadable:
        output.warn(f"{report.unreadable:,} cannot be read: see the column problem")
    output.result(report.as_json, [f"{report.out}: {counted(report.exported, 'message')}"])
    click.get_current_context().exit(FINDINGS if report.unreadable else DONE)


@verb("delaywheel plain /data/rocketmq/member-n1 /data/rocketmq/store")
@click.argument("source", type=STORE)
@click.argument("target", type=STORE)
@place_options("source", keeps_conf=True)
@stopped_store_options
def plain(
    output: "Output",
    source: Path,
    target: Path,
    *,
    after_crash: bool,
    level_table: DelayLevels | None,
    broker_conf: Path | None,
) -> None:
    """Copy the whole store of a DLedger member, SOURCE, to TARGET as that of an ordinary broker.

    TARGET has all topics, queues and consumer offsets, and 4.9 and 5.x open it without DLedger.
    It does not exist or is empty. The index for searches by key is left out.
    """
    with loading(output):
        from delaywheel.terminal.render.text import plain_lines
        from migrate.plain.plain import make_plain
    with output.progress() as progress:
        report = make_plain(
            source,
            target,
            after_crash=after_crash,
            level_table=given_level_table(level_table, broker_conf),
            progress=progress,
        )
    output.result(report.as_json, plain_lines(report))
