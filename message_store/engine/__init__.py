# SPDX-License-Identifier: Apache-2.0
"""Hides what engines do alike, and what those of timed messages do besides."""
