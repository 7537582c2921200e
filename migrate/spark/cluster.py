# SPDX-License-Identifier: Apache-2.0
"""What a session, or the name of a master, tells of the machines behind it; and why Spark failed.

A classic session has a context, one of Spark Connect has none. Whoever asks here need not know.
Loads no Spark: the command line shows its defaults.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from message_store.base.errors import MigrationError, OptionsError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*,4]"
_RANGE_ROWS = 1 << 16
_MAX_FAILURES = "4"
"""Spark's default of ``spark.task.maxFailures``."""


def is_one_machine(master: str | None) -> bool:
    """Whether all workers of this master see the files of this machine."""
    return master is not None and master.startswith("local")


def require_shared_directory(master: str | None, directory: Path | None, flag: str) -> None:
    """Raise OptionsError for a cluster without a directory that all its workers see."""
    if master is not None and directory is None and not is_one_machine(master):
        raise OptionsError(
            f"--master {master} is not this machine alone: {flag} must name a directory that every"
            " worker sees under the same path"
        )


def reason_of(error: str, output: str = "") -> str:
    """One line out of pages of Java frames that tells why: what a Python task raised, else the
    first exception that Java names, in ``output`` before ``error``.
    """
    text = f"{output}\n{error}"
    raised = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", text)
    causes = re.findall(r"(?:[\w$]+\.)+\w*(?:Exception|Error): (.+)", text)
    lines = [line for line in error.splitlines() if line.strip()]
    return (raised or causes or lines or ["no reason given"])[0].strip()[:300]


def context_of(spark: "SparkSession") -> "SparkContext | None":
    """The session's context; None through Spark Connect."""
    return getattr(spark, "sparkContext", None)


def master_of(spark: "SparkSession") -> str | None:
    """The session's master, where its configuration names one."""
    return spark.conf.get("spark.master", None)


def sees_this_machine(spark: "SparkSession") -> bool:
    """Whether all workers surely see this machine's files. A Connect server may be anywhere."""
    return context_of(spark) is not None and is_one_machine(master_of(spark))


def require_scratch(spark: "SparkSession", directory: Path | None, flag: str) -> None:
    """Raise OptionsError without a directory where the workers may be on other machines."""
    if directory is None and not sees_this_machine(spark):
        where = master_of(spark) if context_of(spark) is not None else "behind Spark Connect"
        raise OptionsError(
            f"Spark's workers ({where}) may be on other machines: {flag} must name a directory that"
            " every worker sees under the same path"
        )


def core_count(spark: "SparkSession | None", name: str) -> int:
    """The cores that Spark has by now, 1 without Spark. Raises MigrationError where it has ended.

    Spark Connect has no call for it. There it is the number of partitions that Spark gives to a
    range unasked, which is the same number; counting them is a job without Python.
    """
    if spark is None:
        return 1
    try:
        context = context_of(spark)
        return _partitions_of_a_range(spark) if context is None else context.defaultParallelism
    except Exception as error:  # an AttributeError of a session that was stopped, or of Py4J
        raise MigrationError(f"Spark could not begin {name}: {reason_of(str(error))}") from error


def _partitions_of_a_range(spark: "SparkSession") -> int:
    from pyspark.sql import functions

    numbers = spark.range(_RANGE_ROWS).select(functions.spark_partition_id().alias("number"))
    [row] = numbers.agg(functions.max("number").alias("last")).collect()
    return int(row["last"]) + 1


def attempts_elsewhere(spark: "SparkSession") -> int | None:
    """How often a cluster tries a task; None on one machine, where its disk is the same again."""
    if is_one_machine(master_of(spark)):
        return None
    return int(spark.conf.get("spark.task.maxFailures", _MAX_FAILURES) or _MAX_FAILURES)


def has_ended(spark: "SparkSession") -> bool:
    """Whether the JVM, its context or the Connect server has ended: a next job would be in vain."""
    try:
        context = context_of(spark)
        if context is None:
            spark.conf.get("spark.master", None)
        else:
            context.statusTracker().getActiveJobsIds()
    except Exception:  # whatever Py4J or gRPC makes of a peer that has ended
        return True
    return False
