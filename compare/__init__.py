# SPDX-License-Identifier: Apache-2.0
"""The race: one workload through several engines, measured alike, told side by side."""
