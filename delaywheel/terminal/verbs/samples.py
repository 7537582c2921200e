# SPDX-License-Identifier: Apache-2.0
"""``demo`` and ``generate``: stores that are made to be tried out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from delaywheel.terminal.options.conversion import (
    STORE,
    generate_options,
    now_option,
    spark_options,
)
from delaywheel.terminal.verb import DONE, FINDINGS, Settings, loading, started_spark, verb
from migrate.spark.cluster import require_shared_directory

if TYPE_CHECKING:
    from delaywheel.terminal.render.output import Output


@verb("delaywheel demo")
@click.option(
    "--directory",
    type=STORE,
    help="Directory for the demo stores. Default: a new temporary directory.",
)
@spark_options
def demo(output: "Output", directory: Path | None, master: str | None, conf: Settings) -> None:
    """Convert the small real store that ships with delaywheel, and verify the result."""
    with loading(output):
        from delaywheel.terminal.render.text import demo_lines
        from migrate.demo import run_demo
    require_shared_directory(master, directory, "--directory")
    with output.progress() as progress, started_spark(progress, master, conf) as (spark, start_s):
        result = run_demo(directory, spark=spark, spark_start_s=start_s, progress=progress)
    made_directory = None if directory is not None else str(Path(result.source).parent)
    output.result(result.as_json, demo_lines(result, made_directory))
    click.get_current_context().exit(DONE if result.verification.is_clean else FINDINGS)


@verb("delaywheel generate /tmp/levels --messages 1000000 --now 2026-01-02T03:04:05Z")
@click.argument("store", type=STORE)
@click.option(
    "--messages", type=click.IntRange(0, 10**10), required=True, help="How many messages."
)
@generate_options
@now_option("Time at which the simulated broker stopped:")
def generate(output: "Output", store: Path, now_ms: int, **recipe: Any) -> None:
    """Make a level store in which messages wait, as a stopped broker would have left it."""
    with loading(output):
        from delaywheel.terminal.render.text import generated_lines
        from legacy_levels.generate.store import generate_level_store
    with output.progress() as progress:
        progress("generate", 0, 0)
        made = generate_level_store(store, now_ms=now_ms, **recipe)
    facts = {"path": str(store), **attrs.asdict(made)}
    output.result(lambda: facts, generated_lines(str(store), made, now_ms))
