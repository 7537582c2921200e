# SPDX-License-Identifier: Apache-2.0
"""Hides how a level store of any size is made up, as fast as the disk takes it."""
