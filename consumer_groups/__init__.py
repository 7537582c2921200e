# SPDX-License-Identifier: Apache-2.0
"""Consumer groups over any engine: received, acknowledged, retried, dead; on RocketMQ's files."""

from consumer_groups.group import ConsumerGroup, Lag, Position
from consumer_groups.groups import consumer_group, group_names, group_topics
from consumer_groups.life import message_state
from consumer_groups.received import Acknowledgement, Received
from consumer_groups.runner import Worked, run_consumers
from consumer_groups.stores import GroupStore

__all__ = [
    "Acknowledgement",
    "ConsumerGroup",
    "GroupStore",
    "Lag",
    "Position",
    "Received",
    "Worked",
    "consumer_group",
    "group_names",
    "group_topics",
    "message_state",
    "run_consumers",
]
