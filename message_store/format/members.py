# SPDX-License-Identifier: Apache-2.0
"""What only members of a group write: the entries of a DLedger log as tables, and the text of
`epochFileCheckpoint`. A broker of a group with a controller keeps the latter.

An entry is a head and one ordinary record. Consume queues and the record itself name where the
record begins, not the entry. So only a walk from record to record meets these heads
(docs/FORMAT.md, dledger log).
RocketMQ: EpochFileCache, CheckpointFile (5.5.1).
"""

import attrs

from message_store.base.errors import BadFieldError
from message_store.format.layout import Field, Layout
from message_store.format.message_codec import body_crc

ENTRY_MAGIC = 1
ENTRY_BLANK_MAGIC = -1

ENTRY_HEAD = Layout(
    "DLedger entry head",
    (
        Field("entry_magic", "i32", "1"),
        Field("entry_bytes", "i32", "length of the entry, head and record; 0 where the log ends"),
        Field("entry_index", "i64", "0, 1, 2 and so on, over the borders of files too"),
        Field("term", "i64", "term of the leader, never falls; 0 in a group of one member"),
        Field("entry_offset", "i64", "where this head begins in the log (Java: pos)"),
        Field("channel", "i32", "0"),
        Field("chain_crc", "i32", "0"),
        Field("entry_crc", "i32", "0: only the record's own checksum protects its body"),
        Field("record_bytes", "i32", "length of the record behind this head"),
    ),
)
ENTRY_BLANK = Layout(
    "DLedger blank",
    (
        Field("entry_magic", "i32", "-1"),
        Field("blank_bytes", "i32", "bytes left in the file, these eight included"),
    ),
)


@attrs.frozen
class Epoch:
    """An epoch of the group, and the log offset at which it begins."""

    epoch: int
    start_offset: int


def decode_epochs(content: bytes) -> tuple[Epoch, ...]:
    """The epochs in the order of the file. Raises BadFieldError.

    >>> decode_epochs(b"2\\n812872448\\n1-0\\n2-2688079\\n")[-1]
    Epoch(epoch=2, start_offset=2688079)
    """
    try:
        count, crc, *lines = content.decode("ascii").splitlines()
        pairs = [line.split("-") for line in lines]
        epochs = tuple(Epoch(int(epoch), int(start)) for epoch, start in pairs)
        is_whole = (int(count), int(crc)) == (len(lines), body_crc(_body(lines)))
    except ValueError as error:
        raise BadFieldError("not a list of epochs") from error
    if not is_whole:
        raise BadFieldError("the epochs do not fit their number or checksum")
    return epochs


def _body(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
