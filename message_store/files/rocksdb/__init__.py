# SPDX-License-Identifier: Apache-2.0
"""Hides what a 5.x broker keeps in RocksDB: queues and configuration, read in a copy."""
