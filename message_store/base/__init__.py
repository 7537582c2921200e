# SPDX-License-Identifier: Apache-2.0
"""Hides what has nothing to do with messages: errors, time, text for people, threads and forks."""
