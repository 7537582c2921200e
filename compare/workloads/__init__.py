# SPDX-License-Identifier: Apache-2.0
"""Hides which messages a race schedules, and when."""
