# SPDX-License-Identifier: Apache-2.0
"""Hides how the parts of a target are written, staged, sealed and published."""
