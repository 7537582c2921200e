# SPDX-License-Identifier: Apache-2.0
"""Hides what every store of timed messages shares, however it finds those that are due."""
