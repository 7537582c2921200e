# SPDX-License-Identifier: Apache-2.0
"""Hides how a record becomes numbers that are equal where what must survive is equal."""
