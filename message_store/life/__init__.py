# SPDX-License-Identifier: Apache-2.0
"""Hides how the records of one message are found in a log, and what they tell of its life."""
