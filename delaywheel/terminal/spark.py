# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from message_store.base.clock import stopwatch_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delaywheel.terminal.render.progress import StageProgress

Settings = tuple[tuple[str, str], ...]


@contextmanager
def started_spark(
    progress: "StageProgress", master: str | None, conf: Settings
) -> Iterator[tuple["SparkSession | None", float]]:
    """A session, and the seconds that it took to start; none without a master: the work is done in
    this process then.
    """
    if master is None:
        yield None, 0.0
        return
    from migrate.spark.session import spark_session

    started_s = stopwatch_s()
    progress.say("starting Spark")
    with spark_session(master, dict(conf)) as spark:
        yield spark, stopwatch_s() - started_s
