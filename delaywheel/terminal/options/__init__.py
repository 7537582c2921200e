# SPDX-License-Identifier: Apache-2.0
"""The flags of the verbs, and the values that they take."""
