# SPDX-License-Identifier: Apache-2.0
"""The pending record of a message that was delivered before, such as a retry: scalar, as it is
seldom made.

RocketMQ: AbstractSendMessageProcessor#consumerSendMsgBack keeps body, flags, born time and host,
reconsume times and properties. What steered the earlier delay is dropped.
"""

from collections.abc import Callable, Iterable

import attrs

from message_store.base.errors import BadFieldError
from message_store.columns.unique_keys import new_unique_key
from message_store.format import properties as names
from message_store.format.java_numbers import string_hash
from message_store.format.message import StoredMessage
from message_store.format.message_codec import encode_message
from message_store.format.message_rules import RESERVED_PROPERTIES, check_numbers, check_topic
from message_store.format.record_layout import (
    MAGIC_V1,
    SYS_BORN_HOST_IPV6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_IPV6,
)
from message_store.format.timer_record_rules import host_problem
from message_store.intake.records import RecordForm

_KEPT = {names.TAGS, names.KEYS, names.UNIQUE_KEY}
_DROPPED = frozenset(name.encode() for name in RESERVED_PROPERTIES - _KEPT)


def kept_properties(message: StoredMessage) -> list[tuple[str, str]]:
    """The properties of a delivered message without those that steered its delivery; a unique key
    is made where it has none. Raises BadFieldError for text that is not UTF-8.
    """
    try:
        kept = [
            (name.decode(), value.decode())
            for name, value in names.split_entries(message.properties_text)
            if name not in _DROPPED
        ]
    except UnicodeDecodeError as error:
        raise BadFieldError(
            "a property that is not UTF-8", offset=message.commit_log_offset
        ) from error
    if message.unique_key is None:
        kept.append((names.UNIQUE_KEY, new_unique_key()))
    return kept


class StoredAgainMaker:
    """Makes the records that wait in one system topic of one store once more."""

    def __init__(self, system_topic: str, form: RecordForm) -> None:
        self._system_topic = system_topic
        self._form = form

    def record(
        self,
        message: StoredMessage,
        delay_level: int | None,
        out_ms: int | None,
        queue_id: int,
        queue_offset: int,
        offset_for: Callable[[int], int],
        now_ms: int,
        extra: Iterable[tuple[str, str]] = (),
    ) -> tuple[bytes, int, int, str]:
        """The pending record, its commit log offset, its tag's hash, its unique key.

        ``message`` says topic and queue of its delivery; ``extra`` are properties that the record
        gets as well. Raises BadFieldError for a message that
        cannot be delivered.
        """
        form = self._form
        check_topic(message.topic, form.retry_topic_max_bytes)
        check_numbers(message.queue_id, message.flag)
        if problem := host_problem(message.born_host):
            raise BadFieldError(problem, found=str(message.born_host))
        entries = kept_properties(message)
        key = dict(entries)[names.UNIQUE_KEY]
        entries.append((names.REAL_TOPIC, message.topic))
        if delay_level is not None:
            entries.append((names.DELAY, str(delay_level)))
        entries += extra
        entries.append((names.REAL_QUEUE_ID, str(message.queue_id)))
        if out_ms is not None:
            if out_ms < 0:
                raise BadFieldError("a time before 1970, which no wheel turns to", found=out_ms)
            entries.append((names.TIMER_OUT_MS, str(out_ms)))
        hosts = (
            SYS_BORN_HOST_IPV6 * message.born_host.is_ipv6
            | SYS_STORE_HOST_IPV6 * form.store_host.is_ipv6
        )
        pending = attrs.evolve(
            message,
            topic=self._system_topic,
            magic=MAGIC_V1,
            properties_text=names.encode_properties(entries, closed=form.closes_properties),
            queue_id=queue_id,
            queue_offset=queue_offset,
            store_timestamp_ms=now_ms,
            store_host=form.store_host,
            sys_flag=message.sys_flag & SYS_COMPRESSED | hosts,
            prepared_transaction_offset=0,
        )
        size_bytes = len(encode_message(pending))
        timed_bytes = 0 if out_ms is None else size_bytes
        form.limits.check(len(pending.body), len(pending.properties_text), timed_bytes)
        offset = offset_for(size_bytes)
        record = encode_message(attrs.evolve(pending, commit_log_offset=offset))
        return record, offset, string_hash(message.tags or ""), key
