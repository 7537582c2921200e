# SPDX-License-Identifier: Apache-2.0
"""The verb ``plain``: the store of a DLedger member as that of an ordinary broker."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.terminal.options.conversion import STORE, given_level_table, stopped_store_options
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.verb import loading, verb
from message_store.format.delay_levels import DelayLevels

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


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
