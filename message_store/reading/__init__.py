# SPDX-License-Identifier: Apache-2.0
"""Hides how a store that nobody writes is read: its log, its queues, its topics."""
