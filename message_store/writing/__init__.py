# SPDX-License-Identifier: Apache-2.0
"""Hides how a store is written: log before queue, sync, recovery, retention, topics."""
