# SPDX-License-Identifier: Apache-2.0
"""Hides how a store is converted in its own directory."""
