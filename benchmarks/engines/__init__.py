# SPDX-License-Identifier: Apache-2.0
"""Hides how the engines are measured: loads, rounds, openings, a steady stream."""
