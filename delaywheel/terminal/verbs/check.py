# SPDX-License-Identifier: Apache-2.0
"""The verbs that find problems and restore quarantined records: check, quarantine, put-back."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import (
    LEVEL_TABLE_KEY,
    STORE,
    acting_option,
    execute_option,
    given_level_table,
    now_option,
)
from delaywheel.terminal.options.places import BROKER_CONF, name_given_places, place_flags
from delaywheel.terminal.options.types import LEVEL_TABLE, TIME, TIME_FORMS, all_of, errors_of_flag
from delaywheel.terminal.verb import DONE, FINDINGS, loading, verb
from message_store.base.clock import ManualClock
from message_store.format.delay_levels import DelayLevels
from message_store.reading.engine_choice import ENGINE_NAMES, EngineName

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output

_TARGET_CONF = "--target-conf"


@verb("delaywheel check /data/rocketmq/store --broker-conf /etc/rocketmq/broker.conf")
@click.argument("store", type=STORE)
@click.option(
    BROKER_CONF,
    type=STORE,
    help="The configuration of the broker of this store: sizes, retention, level table,"
    " switches, and where log and queues lie.",
)
@click.option(
    _TARGET_CONF,
    type=STORE,
    help="The configuration of the broker that a conversion is for, or that shall open this one.",
)
@place_flags
@click.option(
    "--level-table",
    type=LEVEL_TABLE,
    help='The messageDelayLevel that the broker will run with, such as "1s 5s 10s".',
)
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Messages that the broker delivers in a second; the default is what RocketMQ's maintainers"
    " state for one that serves others too.",
)
@now_option("Reference time:")
def check(
    output: "Output",
    store: Path,
    broker_conf: Path | None,
    target_conf: Path | None,
    level_table: DelayLevels | None,
    capacity: int,
    now_ms: int,
    **places: Any,
) -> None:
    """Say what will go wrong with a store: what a broker would do, and what to do about it.

    Only reads; the broker may be running. Ends with exit code 1 when something is a warning or an
    error. docs/CHECK.md lists all findings.
    """
    with loading(output):
        from delaywheel.terminal.render.check import check_lines
        from migrate.check.snapshot import CheckOptions
        from migrate.check.store import check_store
        from migrate.settings import TargetSettings
    conf = _conf(broker_conf, BROKER_CONF)
    name_given_places(store, broker_conf=broker_conf, **places)
    target = _conf(target_conf, _TARGET_CONF)
    options = CheckOptions(
        now_ms=now_ms,
        conf=conf,
        target=None if target_conf is None else TargetSettings.from_conf(target),
        level_table=given_level_table(
            level_table, broker_conf if LEVEL_TABLE_KEY in conf else None
        ),
        capacity=capacity,
    )
    output.tell_of_writer(store)
    with output.progress() as progress:
        report = check_store(store, options, progress)
    output.result(report.as_json, check_lines(report))
    click.get_current_context().exit(DONE if report.is_healthy else FINDINGS)


def _conf(path: Path | None, flag: str) -> dict[str, str]:
    """A broker's configuration, whose numbers are numbers; empty for none."""
    if path is None:
        return {}
    from migrate.settings import TargetSettings, read_broker_conf

    with errors_of_flag(flag):
        conf = read_broker_conf(path)
        TargetSettings.from_conf(conf)
    return conf


@verb("delaywheel quarantine /data/rocketmq/store-wheel")
@click.argument("store", type=STORE)
def quarantine(output: "Output", store: Path) -> None:
    """List the records in quarantine: why they are there, and what keeps them from being restored.

    STORE is the converted store, or the quarantine directory itself. Ends with exit code 1 when
    some were not restored, with 0 when nothing is in quarantine.
    """
    with loading(output):
        from delaywheel.terminal.render.check import quarantine_lines
        from migrate.quarantine.kept import Quarantine, obstacles
    kept = Quarantine(store)
    reasons = obstacles(kept)
    output.result(lambda: kept.as_json(reasons), quarantine_lines(kept, reasons))
    click.get_current_context().exit(FINDINGS if kept.waiting else DONE)


_put_back_options = all_of(
    click.argument("quarantine", type=STORE),
    click.argument("store", type=STORE),
    click.option(
        "--only",
        multiple=True,
        metavar="FILE",
        help="Only this record, as `quarantine` names it; can be given several times.",
    ),
    click.option("--topic", help="Where they go, instead of what the records say."),
    click.option("--queue-id", type=click.IntRange(0, 65_535), help="Into which queue of it."),
    click.option("--at", "due_ms", type=TIME, help=f"When they are due: {TIME_FORMS}."),
    click.option(
        "--despite-damage", is_flag=True, help="Also restore records whose body checksum is wrong."
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINE_NAMES),
        help="Engine to restore into; required if STORE has both levels and a wheel.",
    ),
    click.option("--level-table", type=LEVEL_TABLE, help="What STORE's levels mean."),
    click.option(BROKER_CONF, type=STORE, help="Its broker's configuration: maxMessageSize."),
    execute_option(),
    acting_option,
)


@verb(
    "delaywheel put-back /data/rocketmq/store-wheel /data/rocketmq/store-wheel\n"
    "delaywheel put-back /data/rocketmq/store-wheel /data/rocketmq/store-wheel --execute"
)
@_put_back_options
def put_back(
    output: "Output",
    quarantine: Path,
    store: Path,
    only: tuple[str, ...],
    topic: str | None,
    queue_id: int | None,
    due_ms: int | None,
    despite_damage: bool,
    engine: EngineName | None,
    level_table: DelayLevels | None,
    broker_conf: Path | None,
    execute: bool,
    now_ms: int | None,
) -> None:
    """Restore quarantined records into STORE: onto its wheel, or into its levels.

    Without --execute the plan is only printed. Each record is restored once, however often this is
    run. One that cannot be restored is named with the reason, and makes the exit code 1. STORE's
    broker must be stopped. Verify a converted store before this, not after it.
    """
    with loading(output):
        from delaywheel.terminal.render.check import put_back_lines
        from migrate.quarantine.kept import Repair
        from migrate.quarantine.restore import RestoreOptions, restore_records
        from migrate.settings import DEFAULT_MAX_MESSAGE_BYTES, TargetSettings
    settings = TargetSettings.from_conf(_conf(broker_conf, BROKER_CONF))
    report = restore_records(
        RestoreOptions(
            quarantine=quarantine,
            store=store,
            engine=engine,
            only=only,
            repair=Repair(
                topic=topic, queue_id=queue_id, due_ms=due_ms, despite_damage=despite_damage
            ),
            levels=given_level_table(level_table, broker_conf),
            max_message_bytes=settings.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES,
        ),
        execute=execute,
        clock=None if now_ms is None else ManualClock(now_ms),
    )
    output.result(report.as_json, put_back_lines(report))
    click.get_current_context().exit(FINDINGS if report.in_the_way else DONE)
