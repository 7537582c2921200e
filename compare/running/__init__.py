# SPDX-License-Identifier: Apache-2.0
"""Hides how an engine is run through a workload, and what is seen of it."""
