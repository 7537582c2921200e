# SPDX-License-Identifier: Apache-2.0
"""What Hypothesis makes of messages: any hosts, both record versions, text from everywhere."""

from hypothesis import strategies as st

from message_store.format.java_numbers import INT_MAX, LONG_MAX, LONG_MIN
from message_store.format.message import Host, Message, StoredMessage
from message_store.format.message_codec import body_crc
from message_store.format.message_rules import RESERVED_PROPERTIES, UNDELIVERABLE_TOPICS
from message_store.format.properties import encode_properties
from message_store.format.record_layout import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_IPV6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_IPV6,
)

int32s = st.integers(-INT_MAX - 1, INT_MAX)
int64s = st.integers(LONG_MIN, LONG_MAX)
texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20
)
property_lists = st.lists(st.tuples(texts, texts), max_size=5)
hosts = st.builds(
    Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), int32s
)


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    """A message that a log may hold: its CRC right, its flags true to its hosts."""
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    born, store = draw(hosts), draw(hosts)
    body = draw(st.binary(max_size=200))
    ipv6 = SYS_BORN_HOST_IPV6 * born.is_ipv6 | SYS_STORE_HOST_IPV6 * store.is_ipv6
    other_flags = draw(st.integers(0, 0x7FF)) & ~(SYS_BORN_HOST_IPV6 | SYS_STORE_HOST_IPV6)
    return StoredMessage(
        topic=draw(texts) * (8 if magic == MAGIC_V2 else 1),
        body=body,
        body_crc=body_crc(body),
        properties_text=encode_properties(draw(property_lists), closed=draw(st.booleans())),
        queue_id=draw(int32s),
        queue_offset=draw(int64s),
        commit_log_offset=draw(int64s),
        born_timestamp_ms=draw(int64s),
        born_host=born,
        store_timestamp_ms=draw(int64s),
        store_host=store,
        flag=draw(int32s),
        sys_flag=ipv6 | other_flags | draw(st.sampled_from([0, SYS_COMPRESSED])),
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
        magic=magic,
    )


words = st.text(
    st.characters(codec="utf-8", exclude_characters=" /\x7f", min_codepoint=0x21), min_size=1
)
topics = st.one_of(
    words.map(lambda word: word[:30]).filter(lambda word: word not in UNDELIVERABLE_TOPICS),
    st.integers(1, 248).map(lambda count: "%RETRY%" + "g" * count),
)


@st.composite
def waiting_messages(draw: st.DrawFn) -> Message:
    """A message that any store takes, its unique key given."""
    properties = {
        name: value for name, value in draw(property_lists) if name not in RESERVED_PROPERTIES
    }
    return Message(
        topic=draw(topics),
        body=draw(st.binary(max_size=200)),
        tags=draw(st.none() | texts | st.just("")),
        keys=tuple(draw(st.lists(texts, max_size=3))),
        properties=properties,
        queue_id=draw(st.integers(0, 65_535)),
        flag=draw(int32s),
        unique_key=draw(words),
    )
