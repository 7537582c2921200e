# SPDX-License-Identifier: Apache-2.0
"""Hides what only members of a group write: heads of DLedger entries, and epochs."""
