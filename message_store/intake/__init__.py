# SPDX-License-Identifier: Apache-2.0
"""Hides how a message becomes a record that waits in a system topic, one or many."""
