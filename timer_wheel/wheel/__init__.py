# SPDX-License-Identifier: Apache-2.0
"""Hides how a wheel in files is worked: opened, placed on, turned, left, checked."""
