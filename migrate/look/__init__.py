# SPDX-License-Identifier: Apache-2.0
"""Hides how a store is shown at a glance, and how what waits in it is listed."""
