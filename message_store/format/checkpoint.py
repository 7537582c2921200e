# SPDX-License-Identifier: Apache-2.0
"""The store's own ``checkpoint`` file: up to which time everything was flushed.

One page of 4,096 bytes. Newer brokers know more fields at its end. A version that does not know a
field writes 0 for it in a new file, and does not change it in another version's (docs/FORMAT.md).
"""

import attrs

from message_store.format.layout import Buffer, Field, Layout

CHECKPOINT_FILE_BYTES = 4096
_MARGIN_MS = 3_000

_FIELDS = (
    Field("commit_log_timestamp_ms", "i64", "store time of the newest message flushed to the log"),
    Field("queue_timestamp_ms", "i64", "store time of the newest message put into a queue"),
    Field("index_timestamp_ms", "i64", "store time of the newest message in the key index"),
    Field("master_flushed_offset", "i64", "5.x: log offset up to which the master has flushed"),
    Field("confirm_offset", "i64", "5.x: log offset up to which replicas agree"),
    Field("queue_commit_log_offset", "i64", "5.5: where the last record put into a queue begins"),
)
CHECKPOINT_4_9 = Layout("checkpoint (4.x)", _FIELDS[:3])
CHECKPOINT_5_3 = Layout("checkpoint (5.0 to 5.4)", _FIELDS[:5])
CHECKPOINT_5_5 = Layout("checkpoint (5.5)", _FIELDS)

LOG_END = Layout(
    "log end",
    (
        Field("log_end", "i64", "log offset up to which a store that is open was synced"),
        Field("complement", "i64", "all bits of it turned round; else the file says nothing"),
    ),
)
"""delaywheel's own ``delaywheel/log-end``."""


@attrs.frozen
class StoreCheckpoint:
    """The fields of the file; those that its version does not know are 0."""

    commit_log_timestamp_ms: int = 0
    queue_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queue_commit_log_offset: int = 0

    @property
    def recover_from_ms(self) -> int:
        """Where brokers up to 5.4 recover from: 3 s before the older of the first two times."""
        return max(0, min(self.commit_log_timestamp_ms, self.queue_timestamp_ms) - _MARGIN_MS)

    @classmethod
    def decode(cls, content: Buffer) -> "StoreCheckpoint":
        """The fields of a file; one that is shorter is filled up with zeros, as a broker does.

        >>> StoreCheckpoint.decode(bytes.fromhex("0000018bcfe5687b")).commit_log_timestamp_ms
        1700000000123
        """
        head = bytes(content[: CHECKPOINT_5_5.size]).ljust(CHECKPOINT_5_5.size, b"\0")
        return cls(**CHECKPOINT_5_5.decode_at(head, 0))

    def encode(self, layout: Layout = CHECKPOINT_5_5) -> bytes:
        """The whole file, with the fields that a version knows; later ones are left out."""
        values = attrs.asdict(self)
        fields = layout.encode(**{field.name: values[field.name] for field in layout.fields})
        return fields.ljust(CHECKPOINT_FILE_BYTES, b"\0")
