# SPDX-License-Identifier: Apache-2.0
"""Hides which messages go to which log file of a target, and where all of them lie at last."""
