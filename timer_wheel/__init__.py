# SPDX-License-Identifier: Apache-2.0
"""The timer wheel of RocketMQ 5: any due time, slots of a fixed width, chains in a log."""
