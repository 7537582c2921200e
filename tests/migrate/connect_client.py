# SPDX-License-Identifier: Apache-2.0
"""A process that converts and verifies through Spark Connect, and says how it went: `python -m
tests.migrate.connect_client SOURCE TARGET SCRATCH`. The server is a session of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from message_store.base.errors import DelayStoreError, OptionsError, SourceError
from migrate.convert import convert
from migrate.settings import ConvertOptions
from migrate.spark.cluster import core_count, has_ended
from migrate.spark.tasks import run_tasks
from migrate.verify.verify import VerifyOptions, verify
from tests.migrate.conversions import NOW_MS, SMALL


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def refuse(task: str) -> None:
    raise SourceError(task)


def divide(task: int) -> float:
    return 1 / task


def sentence_of(spark: SparkSession, tasks: list[object], function: object) -> str:
    try:
        run_tasks(spark, tasks, function, lambda _done: None)  # type: ignore[arg-type]
    except DelayStoreError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def cancelled(spark: SparkSession) -> float:
    """How many seconds a job of ten minutes took that Ctrl-C met once its tasks ran."""
    began = time.monotonic()

    def press(_done: int) -> None:
        if time.monotonic() - began > 3:
            raise KeyboardInterrupt

    try:
        run_tasks(spark, [600.0, 600.0], sleep, press)
    except KeyboardInterrupt:
        return time.monotonic() - began
    raise AssertionError("it was not interrupted")


def main(source: Path, target: Path, scratch: Path) -> None:
    builder = SparkSession.builder.config("spark.connect.progress.reportInterval", "100ms")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").remote("local[2]").getOrCreate()
    spark.addTag("of-the-caller")
    conf = spark.conf.getAll
    options = ConvertOptions(source=source, target=target, now_ms=NOW_MS, settings=SMALL)
    report = convert(options, spark=spark)
    try:
        verify(source, target, spark=spark)
        refusal = "none"
    except OptionsError as error:
        refusal = str(error)
    verification = verify(source, target, spark=spark, options=VerifyOptions(scratch=scratch))
    seen: list[int] = []
    run_tasks(spark, [0.4] * 8, sleep, seen.append)
    answer = {
        "has_context": hasattr(spark, "sparkContext"),
        "cores": core_count(spark, "the test"),
        "converted": report.total("converted"),
        "without_scratch": refusal,
        "is_clean": verification.is_clean,
        "verified": verification.converted,
        "progress": seen,
        "damage": sentence_of(spark, ["/logs: damaged"], refuse),
        "failure": sentence_of(spark, [0], divide),
        "cancelled_s": cancelled(spark),
        "tags": sorted(spark.getTags()),
        "same_conf": spark.conf.getAll == conf,
        "handlers": len(spark.client._progress_handlers),
        "had_ended": has_ended(spark),
    }
    spark.stop()
    sys.stdout.write(json.dumps({**answer, "has_ended": has_ended(spark)}) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
