# SPDX-License-Identifier: Apache-2.0
"""Hides what engines of timed messages do alike, wherever they keep what is due when."""
