# SPDX-License-Identifier: Apache-2.0
"""What ScheduleMessageService asks of a broker, as a small protocol, and the broker's settings.

RocketMQ: DefaultMessageStore, ConsumeQueue, MessageStoreConfig (4.9.7). No I/O here: an adapter
binds it to a store directory, a test to lists.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import attrs

from legacy_levels.delay_offsets import DelayOffsets
from message_store.format.broker_json import ConfigDialect
from message_store.format.delay_levels import DEFAULT_LEVELS
from message_store.format.dialect import Dialect
from message_store.format.message import StoredMessage


@attrs.frozen
class MessageStoreConfig:
    """Settings of a broker by their own names; times are ms. ``version`` selects 4.9 or 5.x.

    The last three are constants in Java: how long after the start a level is looked at, how long
    after each look, and how often the results of puts are.
    """

    version: Dialect = Dialect.ROCKETMQ_4_9
    message_delay_level: str = DEFAULT_LEVELS
    flush_delay_offset_interval: int = 10_000
    delay_offset_update_version_step: int = 200
    enable_schedule_async_deliver: bool = False
    schedule_async_deliver_max_pending_limit: int = 2_000
    schedule_async_deliver_max_resend_num2_blocked: int = 3
    first_delay_time: int = 1_000
    delay_for_a_while: int = 100
    delay_for_a_sleep: int = 10

    @property
    def dialect(self) -> ConfigDialect:
        """How its brokers write `delayOffset.json`."""
        return self.version.config

    @property
    def is_4_9(self) -> bool:
        """Whether the rules of 4.9 hold, and not those of 5.x."""
        return self.version is Dialect.ROCKETMQ_4_9


class CqUnit(NamedTuple):
    """One entry of a level queue; ``tags_code`` is when its message is due, epoch ms."""

    pos: int
    size: int
    tags_code: int


class ConsumeQueue(Protocol):
    """The queue of one level, by queue offset: from ``min_offset`` up to ``max_offset``."""

    @property
    def min_offset(self) -> int:
        """The oldest entry whose record the log still has."""

    @property
    def max_offset(self) -> int:
        """One past the newest entry."""

    def get_index_buffer(self, offset: int) -> Sequence[CqUnit]:
        """The entries from ``offset`` to the end of its file; none if it is outside the queue."""


class BrokerStore(Protocol):
    """Queues, records, appends, a clock and a small file."""

    def now_ms(self) -> int:
        """The broker's clock, epoch ms; somebody may set it back."""

    def nano_time_ms(self) -> int:
        """A clock that nobody sets, in ms. RocketMQ: executors and sleeps go by System#nanoTime."""

    def find_consume_queue(self, delay_level: int) -> ConsumeQueue:
        """The queue of a level; an empty one where nothing was stored yet."""

    def look_message_by_offset(self, pos: int, size: int) -> StoredMessage | None:
        """The record of ``size`` bytes at ``pos`` of the log; None if there is none."""

    def async_put_message(self, message: StoredMessage) -> Future[bool]:
        """Append to the log and to the topic's queue; the answer is whether it is PUT_OK.

        Raises BadFieldError for a topic that no broker can have.
        """

    def load_config(self) -> DelayOffsets | None:
        """What `delayOffset.json` says, or else its `.bak`; None where a broker does not start."""

    def persist_config(self, text: bytes) -> None:
        """Replace `delayOffset.json`; the text before it becomes the `.bak`."""
