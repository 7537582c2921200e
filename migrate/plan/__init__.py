# SPDX-License-Identifier: Apache-2.0
"""Hides where every record of a target will lie, known before a byte is written."""
