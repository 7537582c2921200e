# SPDX-License-Identifier: Apache-2.0
"""Hides which stores may be converted, and how their pending messages are found and read."""
