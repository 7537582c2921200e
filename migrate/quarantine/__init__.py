# SPDX-License-Identifier: Apache-2.0
"""Hides what becomes of records that cannot be converted: quarantined, and restored."""
