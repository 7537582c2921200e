# SPDX-License-Identifier: Apache-2.0
"""Hides how the timers of a stopped store are read, as a starting broker would."""
