# SPDX-License-Identifier: Apache-2.0
"""Hides Spark: its session, its jobs, and the data sources that users load."""
