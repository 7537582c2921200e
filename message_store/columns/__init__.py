# SPDX-License-Identifier: Apache-2.0
"""Hides that many messages are columns: byte strings, batches, and their bulk codec."""
