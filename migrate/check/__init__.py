# SPDX-License-Identifier: Apache-2.0
"""Hides what will go wrong with a store: findings for a person, worst first."""
