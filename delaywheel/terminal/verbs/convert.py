# SPDX-License-Identifier: Apache-2.0
"""``convert``: one store, several, or a fleet; into a fresh target or in place."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import STORE, conversion_options, spark_options
from delaywheel.terminal.options.places import NAMES as PLACE_NAMES
from delaywheel.terminal.options.places import name_given_places, refuse_place_flags
from delaywheel.terminal.verb import Settings, loading, started_spark, verb
from delaywheel.terminal.verbs import changes, fleet

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output

members_option = click.option(
    "--members",
    is_flag=True,
    help="The SOURCEs are the members of one group, of DLedger or with a controller: convert the"
    " one that it would elect. Say what the others lack.",
)


@verb(
    "delaywheel convert /data/rocketmq/store /data/rocketmq/store-wheel \\\n"
    "    --target-conf /etc/rocketmq/broker.conf --report conversion.html\n"
    "delaywheel convert /data/rocketmq/store /data/rocketmq/store-wheel --plan\n"
    "delaywheel convert /mnt/broker-a/store /mnt/broker-b/store /mnt/broker-c/store /data/wheels\n"
    "delaywheel convert /mnt/broker-a/store /mnt/broker-b/store /data/store-wheel --merge\n"
    "delaywheel convert /mnt/n0/store /mnt/n1/store /mnt/n2/store /data/store-wheel --members"
)
@click.argument("stores", nargs=-1, type=STORE, metavar="SOURCE... TARGET")
@fleet.manifest_option
@fleet.merge_option
@members_option
@conversion_options
@spark_options
@changes.in_place_options
@click.option(
    "--plan",
    "plan_only",
    is_flag=True,
    help="Say what would be converted, by level and topic, and what room it takes; write nothing."
    " Ends with the exit code of the conversion. For one TARGET.",
)
@click.option(
    "--report",
    "report_file",
    type=STORE,
    help="Also write a report, as HTML; of many stores a directory of them.",
)
def convert(
    output: "Output",
    stores: tuple[Path, ...],
    manifest: Path | None,
    merge: bool,
    members: bool,
    master: str | None,
    conf: Settings,
    report_file: Path | None,
    in_place: bool,
    execute: bool,
    plan_only: bool,
    **given: Any,
) -> None:
    """Convert the pending messages in the levels of SOURCE into a fresh store TARGET with a wheel.

    TARGET does not exist or is empty. A run that was stopped is continued by the same command.
    With --in-place there is no TARGET: SOURCE gets the messages for its own wheel.
    With several SOURCEs, TARGET is the directory in which each gets a target of its own. With
    --merge it is one target for the messages of all of them. With --members, SOURCEs are the
    members of one group, of which one is converted into TARGET.
    """
    if members:
        stores = _chosen_member(
            output, stores, manifest, merge=merge, in_place=in_place, given=given
        )
    is_fleet = fleet.is_fleet(stores, manifest)
    if is_fleet:
        refuse_place_flags(given)
    changes.require_places(
        stores,
        is_fleet=is_fleet,
        in_place=in_place,
        execute=execute,
        merge=merge,
        report=report_file is not None,
        plan=plan_only,
    )
    if in_place:
        changes.run_in_place(output, source=stores[0], execute=execute, **given)
        return
    if plan_only:
        fleet.run_plan(output, stores, manifest, **given)
        return
    run = fleet.run_fleet if is_fleet and not merge else fleet.run_one_target
    start_spark = partial(started_spark, master=master, conf=conf)
    run(output, stores, manifest, start_spark=start_spark, report=report_file, **given)


def _chosen_member(
    output: "Output",
    stores: tuple[Path, ...],
    manifest: Path | None,
    *,
    merge: bool,
    in_place: bool,
    given: dict[str, Any],
) -> tuple[Path, Path]:
    """The member that the group would elect, and the target; says what the others lack."""
    if merge or manifest is not None or in_place:
        raise click.UsageError("--members takes no --merge, no --manifest and no --in-place")
    if len(stores) < 2:
        raise click.UsageError("--members needs the SOURCEs and a TARGET")
    with loading(output):
        from migrate.source.members import choose_of_group
    *sources, target = stores
    places = {name: given[name] for name in PLACE_NAMES}
    name_given_places(*sources, broker_conf=given["broker_conf"], **places)
    chosen = choose_of_group(sources)
    output.warn(
        f"{chosen.store} is converted, which the group would elect: it ends at {chosen.state}"
    )
    output.warnings(chosen.others)
    return chosen.store, target
