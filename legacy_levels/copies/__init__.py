# SPDX-License-Identifier: Apache-2.0
"""Hides how a delivered copy of a message is recognised in the log."""
