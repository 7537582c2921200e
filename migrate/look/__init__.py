# SPDX-License-Identifier: Apache-2.0
"""Hides how a store is shown at a glance, and how its pending messages are listed."""
