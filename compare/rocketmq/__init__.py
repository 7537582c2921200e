# SPDX-License-Identifier: Apache-2.0
"""Hides RocketMQ's own engines: their jars, and the Java process they race in."""
