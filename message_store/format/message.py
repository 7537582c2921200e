# SPDX-License-Identifier: Apache-2.0
"""A message as a user gives it, :class:`Message`, and as a record, :class:`StoredMessage`."""

import ipaddress
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from message_store.base.kinds import require_kind, require_whole
from message_store.format import properties as names
from message_store.format.java_numbers import INT_MAX
from message_store.format.record_layout import (
    MAGIC_V1,
    SYS_BORN_HOST_IPV6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_IPV6,
)

IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv4 address in the form of an IPv6 one. Java makes it an IPv4 address
again, whatever the record's flags say, and a broker that stores the record anew writes four bytes
where the flags promise sixteen.
"""


@attrs.frozen
class Host:
    """An address and a port, as records keep them: 4 or 16 bytes and an int."""

    ip: bytes = attrs.field()
    port: int

    @ip.validator
    def _check_ip(self, _attribute: object, value: bytes) -> None:
        if len(value) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(value)}")

    @classmethod
    def of(cls, address: str, port: int) -> "Host":
        """A host from its text.

        >>> str(Host.of("127.0.0.1", 10911)), str(Host.of("::1", 80))
        ('127.0.0.1:10911', '[::1]:80')
        """
        return cls(ipaddress.ip_address(address).packed, port)

    @property
    def is_ipv6(self) -> bool:
        """Whether the address takes 16 bytes."""
        return len(self.ip) == 16

    @property
    def is_mapped(self) -> bool:
        """Whether it is an IPv4 address in the form of an IPv6 one."""
        return self.is_ipv6 and self.ip.startswith(IPV4_IN_IPV6)

    @property
    def unmapped(self) -> "Host":
        """The same host, with an IPv4 address in its own form.

        >>> str(Host.of("::ffff:10.0.0.1", 80).unmapped)
        '10.0.0.1:80'
        """
        return Host(self.ip[-4:], self.port) if self.is_mapped else self

    def __str__(self) -> str:
        text = str(ipaddress.ip_address(self.ip))
        return f"[{text}]:{self.port}" if self.is_ipv6 else f"{text}:{self.port}"


LOCAL_HOST = Host.of("127.0.0.1", 0)


def _keys(value: Iterable[str] | str) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@attrs.frozen
class Message:
    """A message as an application hands it over.

    ``tags`` is RocketMQ's single tag, ``keys`` are what it can be looked up by, ``properties`` are
    the user's own. ``unique_key`` is the client's message id; the store makes one when it is None;
    an empty one is refused. Raises BadFieldError for what is of another kind.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = attrs.field(default=(), converter=_keys)
    properties: Mapping[str, str] = attrs.field(factory=dict)
    queue_id: int = 0
    flag: int = 0
    unique_key: str | None = None

    def __attrs_post_init__(self) -> None:  # a validator a field takes three times as long
        if type(self.queue_id) is not int or type(self.flag) is not int:
            require_whole("queue_id", self.queue_id, -INT_MAX - 1, INT_MAX)
            require_whole("flag", self.flag, -INT_MAX - 1, INT_MAX)
        if type(self.topic) is not str:
            require_kind("topic", self.topic, str)
        if self.tags is not None and type(self.tags) is not str:
            require_kind("tags", self.tags, str | None)
        if self.unique_key is not None and type(self.unique_key) is not str:
            require_kind("unique_key", self.unique_key, str | None)
        if not self.topic:
            raise ValueError("'topic' must not be empty")
        if self.queue_id < 0:
            raise ValueError(f"'queue_id' must be >= 0: {self.queue_id}")
        if self.unique_key == "":  # no reader finds an empty property
            raise ValueError("'unique_key' must not be empty; without one the store makes it")


@attrs.frozen(slots=False)
class StoredMessage:
    """One commit log record, field by field.

    ``properties_text`` is kept as stored, because its order and its ending must survive a copy;
    ``properties`` is the map that a broker reads from it.
    """

    topic: str
    body: bytes
    body_crc: int
    properties_text: bytes
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MAGIC_V1

    def __attrs_post_init__(self) -> None:
        bits = (
            SYS_BORN_HOST_IPV6 * self.born_host.is_ipv6
            | SYS_STORE_HOST_IPV6 * self.store_host.is_ipv6
        )
        if self.sys_flag & (SYS_BORN_HOST_IPV6 | SYS_STORE_HOST_IPV6) != bits:
            raise ValueError("the IPv6 bits of sys_flag must agree with the hosts")

    @cached_property
    def properties(self) -> dict[str, str]:
        """Name to value, as a broker reads it: no empty values, the last of equal names wins."""
        return names.decode_properties(self.properties_text)

    @property
    def tags(self) -> str | None:
        """The tag, if it has one."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, which records keep separated by spaces."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def unique_key(self) -> str | None:
        """The client's message id, if it has one."""
        return self.properties.get(names.UNIQUE_KEY)

    @property
    def real_topic(self) -> str:
        """Where a delayed record will be delivered; its own topic when it is not delayed."""
        return self.properties.get(names.REAL_TOPIC, self.topic)

    @property
    def is_compressed(self) -> bool:
        """Whether the stored body is the client's compressed form."""
        return bool(self.sys_flag & SYS_COMPRESSED)

    @property
    def offset_message_id(self) -> str:
        """The id that a put answers with: store host, port and log offset in hex."""
        packed = self.store_host.ip + self.store_host.port.to_bytes(4, "big", signed=True)
        return (packed + self.commit_log_offset.to_bytes(8, "big", signed=True)).hex().upper()
