# SPDX-License-Identifier: Apache-2.0
"""The verbs that change a store where it is: ``convert --in-place``, ``retire`` and ``rollback``.

Each shows a plan unless told to ``--execute``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import STORE, conversion_request, execute_option
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.options.types import Function
from delaywheel.terminal.verb import loading, verb
from message_store.base.clock import SystemClock

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


def in_place_options(function: Function) -> Function:
    """``--in-place`` and ``--execute`` of ``convert``."""
    in_place = click.option(
        "--in-place",
        is_flag=True,
        help="Append to SOURCE itself, for its own broker; there is no TARGET. Needs no Spark.",
    )
    return in_place(execute_option("With --in-place: ")(function))


def require_places(
    stores: Sequence[Path],
    *,
    is_fleet: bool,
    in_place: bool,
    execute: bool,
    merge: bool,
    report: bool,
    plan: bool,
) -> None:
    """Raise UsageError for arguments of ``convert`` that do not go together."""
    if merge and not is_fleet and len(stores) == 2:
        raise click.UsageError("--merge needs two or more SOURCEs")
    if merge and in_place:
        raise click.UsageError("--merge is for a fresh TARGET; --in-place has none")
    if in_place and is_fleet:
        raise click.UsageError("--in-place converts one store; give the command for each")
    if in_place and len(stores) > 1:
        raise click.UsageError("--in-place converts SOURCE within itself: there is no TARGET")
    if in_place and report:
        raise click.UsageError("--report is for a fresh TARGET; --json tells all in place too")
    if not is_fleet and len(stores) < 2 - in_place:
        missing = "TARGET" if stores else "SOURCE"
        raise click.UsageError(f"Missing argument '{missing}'.")
    if plan and in_place:
        raise click.UsageError("--plan is for a TARGET; --in-place without --execute is a plan")
    if plan and report:
        raise click.UsageError("--plan writes nothing; leave --report out")
    if plan and is_fleet and not merge:
        raise click.UsageError("--plan is for one target; give the command for each SOURCE")
    if not in_place and execute:
        raise click.UsageError("--execute goes with --in-place; a fresh TARGET needs none")


def run_in_place(output: "Output", *, source: Path, execute: bool, **given: Any) -> None:
    """``convert --in-place``."""
    if given["owner"] is not None or given["mode"] is not None:
        raise click.UsageError(
            "--owner and --mode are for a fresh TARGET; in place, files are as the store's are"
        )
    if given["topic_type"] != "mixed":
        raise click.UsageError(
            "--topic-type is for a fresh TARGET; in place, topics are what the store says"
        )
    with loading(output):
        from delaywheel.terminal.render.changes import in_place_lines
        from migrate.in_place.convert import convert_in_place
        from migrate.settings import read_broker_conf
    confs = [given[name] for name in ("broker_conf", "target_conf") if given[name] is not None]
    options = conversion_request(source=source, target=source, **given)
    with output.progress() as progress:
        report = convert_in_place(
            options,
            confs=[read_broker_conf(path) for path in confs],
            execute=execute,
            progress=progress,
        )
    output.warnings(report.conversion.warnings)
    output.result(report.as_json, in_place_lines(report, SystemClock().now_ms()))


@verb(
    "delaywheel retire /data/rocketmq/store --converted-to /data/rocketmq/store-wheel\n"
    "delaywheel retire /data/rocketmq/store --converted-to /data/rocketmq/store-wheel --execute\n"
    "delaywheel retire /mnt/n0/store /mnt/n1/store /mnt/n2/store --broker-conf n0.conf \\\n"
    "    --converted-to /data/store-wheel"
)
@click.argument("sources", nargs=-1, required=True, type=STORE, metavar="SOURCE...")
@place_options("sources", keeps_conf=True, has_target=False)
@click.option(
    "--converted-to",
    "target",
    type=STORE,
    required=True,
    help="The finished target that SOURCE was converted to.",
)
@execute_option()
def retire(
    output: "Output",
    sources: tuple[Path, ...],
    target: Path,
    execute: bool,
    broker_conf: Path | None,
) -> None:
    """Move the offsets of SOURCE past what its target has, so that it delivers nothing twice.

    What was not converted stays and is still delivered by a broker on SOURCE. All members of a
    group are retired together: name all of them. Of a DLedger group, name also a broker's
    configuration, for its dLegerPeers.
    """
    with loading(output):
        from delaywheel.terminal.render.changes import retirement_lines
        from message_store.files.store_root import StoreRoot
        from migrate.changes.retire import retire as retire_source
        from migrate.changes.retire import retire_members
        from migrate.settings import read_broker_conf
        from migrate.source.members import member_state, peers_in
    peers = () if broker_conf is None else peers_in(read_broker_conf(broker_conf))
    if not peers and len(sources) == 1:
        report = retire_source(sources[0], target, execute=execute)
        if member_state(StoreRoot(sources[0])) is not None:
            output.warn(
                f"{sources[0]}: a member of a group with a controller; its other members would"
                " deliver what was converted once more, unless they are named and retired as well"
            )
        output.result(report.as_json, retirement_lines(report))
        return
    reports = retire_members(sources, target, peers=peers, execute=execute)
    output.result(
        lambda: [report.as_json() for report in reports],
        [line for report in reports for line in retirement_lines(report)],
    )


@verb(
    "delaywheel rollback /data/rocketmq/store\ndelaywheel rollback /data/rocketmq/store --execute"
)
@click.argument("store", type=STORE)
@place_options("store", has_target=False)
@execute_option()
def rollback(output: "Output", store: Path, execute: bool) -> None:
    """Undo the last change of STORE (convert --in-place, or retire), finished or not.

    Refused once a broker has written to the store since.
    """
    with loading(output):
        from delaywheel.terminal.render.changes import rollback_lines
        from message_store.files.store_root import StoreRoot
        from migrate.changes.undo import roll_back
    report = roll_back(StoreRoot(store), execute=execute)
    output.result(report.as_json, rollback_lines(report))
    output.warnings(report.warnings)
