# SPDX-License-Identifier: Apache-2.0
"""Hides the bytes of a wheel: slots, timer log, checkpoint, metrics, and their arithmetic."""
