# SPDX-License-Identifier: Apache-2.0
"""Hides how a record that waited goes on: to its own topic, or back to the wheel."""
