# SPDX-License-Identifier: Apache-2.0
"""Hides the disk: rows of segment files, small files that are replaced, a store's root."""
