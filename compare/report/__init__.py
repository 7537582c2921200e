# SPDX-License-Identifier: Apache-2.0
"""Hides what is made of a race: figures, differences, the answer, the page."""
