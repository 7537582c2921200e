# SPDX-License-Identifier: Apache-2.0
"""Hides how the pending messages of a stopped store's levels are told."""
