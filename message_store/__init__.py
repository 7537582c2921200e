# SPDX-License-Identifier: Apache-2.0
"""What both engines stand on: messages, logs, queues and time. Knows no engine."""
