# SPDX-License-Identifier: Apache-2.0
"""How results look: text, tables, JSON and progress."""
