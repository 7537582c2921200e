# SPDX-License-Identifier: Apache-2.0
"""Hides which stores may be converted, what waits in them, and how it is read."""
