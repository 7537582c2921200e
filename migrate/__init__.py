# SPDX-License-Identifier: Apache-2.0
"""The Spark pipeline that turns level queues into wheel slots: plan, write, seal, verify."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_data_sources"]


def register_data_sources(spark: "SparkSession") -> None:
    """Make the data sources ``rocketmq_levels`` and ``rocketmq_wheel`` known to a session.

    Loads Spark only when it is called: the command line asks this package for less.
    """
    from migrate.spark import data_sources

    data_sources.register_data_sources(spark)
