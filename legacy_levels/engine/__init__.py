# SPDX-License-Identifier: Apache-2.0
"""Hides how the levels are worked: opened, scheduled into, delivered, cancelled, checked."""
