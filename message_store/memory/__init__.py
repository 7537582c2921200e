# SPDX-License-Identifier: Apache-2.0
"""Hides the model: the whole interface over one sorted list, for tests and for trying."""
