# SPDX-License-Identifier: Apache-2.0
"""The entry of a DLedger log as tables: the head in front of each record, and the blank of a file.

An entry is such a head and one ordinary record. Consume queues and the record itself name where the
record begins, not the entry. So only a walk from record to record meets these heads
(docs/FORMAT.md, dledger log).
"""

from message_store.format.layout import Field, Layout

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
