# SPDX-License-Identifier: Apache-2.0
"""Whose files to write: one value says everything in which broker versions differ on disk."""

import enum

from message_store.format.broker_json import ConfigDialect
from message_store.format.checkpoint import CHECKPOINT_4_9, CHECKPOINT_5_3, CHECKPOINT_5_5
from message_store.format.layout import Layout


class Dialect(enum.Enum):
    """The oldest broker version of each way of writing; nobody else asks for a version."""

    ROCKETMQ_4_9 = "4.9"
    ROCKETMQ_5_3 = "5.3"
    ROCKETMQ_5_4 = "5.4"
    ROCKETMQ_5_5 = "5.5"

    @property
    def config(self) -> ConfigDialect:
        """How its configuration texts are written."""
        return ConfigDialect(self.value)

    @property
    def has_wheel(self) -> bool:
        """Whether its brokers know the timer wheel."""
        return self is not Dialect.ROCKETMQ_4_9

    @property
    def closes_properties(self) -> bool:
        """Whether a properties text ends in the separator (4.9.1 to 5.1.4 leave the last out)."""
        return self is not Dialect.ROCKETMQ_4_9

    @property
    def knows_long_topics(self) -> bool:
        """Whether its brokers read records of the second magic, whose topic may be long."""
        return self is not Dialect.ROCKETMQ_4_9

    @property
    def checkpoint(self) -> Layout:
        """The fields of `checkpoint` that its brokers know."""
        if self is Dialect.ROCKETMQ_4_9:
            return CHECKPOINT_4_9
        return CHECKPOINT_5_5 if self is Dialect.ROCKETMQ_5_5 else CHECKPOINT_5_3

    @property
    def topic_in_delete_key(self) -> bool:
        """Whether a delete marker names topic and key (5.3.2 and 5.3.3 only), not the key alone."""
        return self is Dialect.ROCKETMQ_5_3

    def abort_text(self, process_id: int) -> bytes:
        """The content of the `abort` file of an open store.

        >>> Dialect.ROCKETMQ_4_9.abort_text(17), Dialect.ROCKETMQ_5_5.abort_text(17)
        (b'', b'17')
        """
        return b"" if self is Dialect.ROCKETMQ_4_9 else str(process_id).encode()
