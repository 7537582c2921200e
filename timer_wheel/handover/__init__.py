# SPDX-License-Identifier: Apache-2.0
"""Hides how a store goes from a wheel in files to a hierarchical one, and back."""
