# SPDX-License-Identifier: Apache-2.0
"""The 18 delay levels of RocketMQ: what waits in them, and how far their delivery has come."""
