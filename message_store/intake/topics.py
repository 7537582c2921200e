# SPDX-License-Identifier: Apache-2.0
"""Sees to it that topics.json knows where waiting messages will go: a broker that takes the store
over delivers there too, and clients find only what is in its table.
"""

import numpy as np

from message_store.columns.byte_column import numbers_of
from message_store.columns.message_batch import MessageBatch
from message_store.writing.store import LiveStore


class WaitingTopics:
    """The topics and queues that a store was told of, each time no more than once.

    ``highest`` is the highest queue of each: what is not above it need not be remembered.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self.highest: dict[str, int] = {}

    def remember(self, topic: str, queue_id: int) -> None:
        """A message waits that goes to this queue."""
        if self.highest.get(topic, -1) < queue_id:
            self.highest[topic] = queue_id
            self._store.remember_topic(topic, queue_id)

    def remember_all(self, batch: MessageBatch) -> None:
        """The messages of a batch wait."""
        encoded = batch.topic.to_arrow().dictionary_encode()
        highest = np.zeros(len(encoded.dictionary), np.int64)
        np.maximum.at(highest, numbers_of(encoded.indices), batch.queue_id)
        for topic, queue_id in zip(encoded.dictionary.to_pylist(), highest.tolist(), strict=True):
            self.remember(topic.decode(), queue_id)
