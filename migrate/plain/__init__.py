# SPDX-License-Identifier: Apache-2.0
"""Hides how the whole store of a DLedger member becomes an ordinary one."""
