# SPDX-License-Identifier: Apache-2.0
"""Hides how the timers of a stopped store are read, and how a delivered copy is recognised."""
