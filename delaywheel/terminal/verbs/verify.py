# SPDX-License-Identifier: Apache-2.0
"""``verify``: a target against its source, or against all of them, or by itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaywheel.terminal.options.conversion import STORE, spark_options
from delaywheel.terminal.options.places import place_options
from delaywheel.terminal.options.types import all_of
from delaywheel.terminal.verb import DONE, FINDINGS, Settings, loading, started_spark, verb
from migrate.spark.cluster import require_shared_directory

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


_reading_options = all_of(
    click.option(
        "--sample",
        "read_only",
        type=click.IntRange(min=1),
        help="Read only so many messages of each source, chosen at random, and count the others."
        " Default: all are read.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Random seed of the sample.",
    ),
    click.option(
        "--differences",
        "table",
        type=STORE,
        help="Also write all differences, one JSON object a line, into this new file.",
    ),
    click.option(
        "--scratch",
        type=STORE,
        help="A directory that every worker sees; needed on a cluster, to hand out the work.",
    ),
)
"""What is read, and where differences go."""


@verb(
    "delaywheel verify /data/rocketmq/store /data/rocketmq/store-wheel\n"
    "delaywheel verify /mnt/broker-a/store /mnt/broker-b/store /data/store-wheel\n"
    "delaywheel verify /data/store-from-a-table"
)
@click.argument("stores", nargs=-1, type=STORE, metavar="[SOURCE]... TARGET")
@place_options("stores")
@_reading_options
@spark_options
def verify(
    output: "Output",
    stores: tuple[Path, ...],
    table: Path | None,
    master: str | None,
    conf: Settings,
    **reading: Any,
) -> None:
    """Account for every pending message of SOURCE in TARGET, reading both sides afresh.

    If TARGET was merged from several stores, give one or more of them as SOURCE. With TARGET only,
    check that a broker would deliver exactly the number of messages recorded when TARGET was made.
    Ends with exit code 1 unless nothing is missing, unexpected or different.
    """
    if not stores:
        raise click.UsageError("Missing argument 'TARGET'.")
    *sources, target = stores
    if reading["read_only"] is not None and not sources:
        raise click.UsageError("--sample: there is no SOURCE to choose messages from")
    with loading(output):
        from migrate.verify import verify as verification
        from migrate.verify.report import ALL, require_table_place, write_differences
        from migrate.verify.verify import require_made, verify_alone
    require_shared_directory(master, reading["scratch"], "--scratch")
    if table is not None:
        require_table_place(table, *stores)
        reading["listed"] = ALL
    options = verification.VerifyOptions(**reading)
    with output.progress() as progress:
        for source in sources:
            verification.require_comparable(source, target)  # before the seconds that Spark takes
        if not sources:
            require_made(target)
        with started_spark(progress, master, conf) as (spark, _start_s):
            if sources:
                reports = verification.verify_all(
                    sources, target, spark=spark, options=options, progress=progress
                )
            else:
                reports = [verify_alone(target, spark=spark, options=options, progress=progress)]
    names = [str(path) for path in sources or [target]]
    by_source = dict(zip(names, reports, strict=True))
    if table is not None:
        write_differences(by_source, table)
    output.verifications(by_source, str(target))
    is_clean = all(report.is_clean for report in reports)
    click.get_current_context().exit(DONE if is_clean else FINDINGS)
