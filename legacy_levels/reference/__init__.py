# SPDX-License-Identifier: Apache-2.0
"""Hides how RocketMQ's algorithm runs on a store's files, level by level, as an oracle."""
