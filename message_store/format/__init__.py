# SPDX-License-Identifier: Apache-2.0
"""Hides the bytes of RocketMQ: records, properties, JSON and checkpoints, without any file."""
