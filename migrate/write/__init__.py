# SPDX-License-Identifier: Apache-2.0
"""Hides how the files of a target are written, staged, sealed and published."""
