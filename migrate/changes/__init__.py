# SPDX-License-Identifier: Apache-2.0
"""Hides how a change of a store is noted, finished, undone; and how a source is retired."""
