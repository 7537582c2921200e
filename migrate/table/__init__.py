# SPDX-License-Identifier: Apache-2.0
"""Hides how pending messages become a table, and a table a wheel."""
