# SPDX-License-Identifier: Apache-2.0
"""Hides how compiled code reads and writes records in memory: CRC, text, logs, properties."""
