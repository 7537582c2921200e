# SPDX-License-Identifier: Apache-2.0
"""The queues that ``benchmarks.peers`` compares, a small driver each.

A driver runs in the environment of its own library. So nothing here imports what is not in the
standard library, but each driver its library. ``work.py`` has what all of them are asked to do.
"""
