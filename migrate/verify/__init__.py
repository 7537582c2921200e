# SPDX-License-Identifier: Apache-2.0
"""Hides how a target is compared with its source, message by message."""
