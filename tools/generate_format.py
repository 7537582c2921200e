# SPDX-License-Identifier: Apache-2.0
"""Writes the generated parts of docs/FORMAT.md: the tables of all layouts, and annotated bytes.

Run by ``make docs``; a test compares. Between ``<!-- generated: NAME -->`` and ``<!-- end -->``
nothing is written by hand.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from message_store.format.checkpoint import (
    CHECKPOINT_4_9,
    CHECKPOINT_5_3,
    CHECKPOINT_5_5,
    LOG_END,
)
from message_store.format.layout import Layout
from message_store.format.members.dledger_entry import ENTRY_BLANK, ENTRY_HEAD
from message_store.format.message import Host, StoredMessage
from message_store.format.message_codec import body_crc, encode_message
from message_store.format.properties import LEVEL_TOPIC
from message_store.format.queue_unit import (
    EXT_UNIT,
    QUEUE_END,
    QUEUE_ROW,
    QUEUE_ROW_KEY_HEAD,
    QUEUE_ROW_KEY_TAIL,
    QUEUE_UNIT,
)
from message_store.format.record_layout import (
    BLANK_RECORD,
    BODY_RUN,
    HEAD_V4_V4,
    HEAD_V4_V6,
    HEAD_V6_V4,
    HEAD_V6_V6,
    PROPERTIES_RUN,
    TOPIC_RUN_V1,
    TOPIC_RUN_V2,
    runs,
)
from time_index.layouts import INDEX_UNIT, STATE_BUCKET, STATE_HEAD, STATE_TAIL
from timer_wheel.format.checkpoint import OWN_CHECKPOINT, TIMER_CHECKPOINT
from timer_wheel.format.index_layouts import (
    BATCHES,
    BLOCK_KEY,
    ID_KEY,
    ID_ROW,
    LAST_BATCH,
    NEWEST,
    STATE,
    WAITING_ROW,
)
from timer_wheel.format.timer_log import TIMER_BLANK, TIMER_UNIT
from timer_wheel.format.wheel_file import SLOT
from timer_wheel.hierarchy.taken_over import TAKEN_OVER
from timer_wheel.reading.timeline import TIMELINE_CHECKPOINT, TIMELINE_KEY, TIMELINE_PLACE

FORMAT_PAGE = Path(__file__).resolve().parents[1] / "docs" / "FORMAT.md"
_MARKED = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

EXAMPLE = StoredMessage(
    topic=LEVEL_TOPIC,
    body=b"hello",
    body_crc=body_crc(b"hello"),
    properties_text=b"REAL_TOPIC\x01TopicA\x02UNIQ_KEY\x010A0102030001\x02DELAY\x015\x02"
    b"TAGS\x01TagA\x02REAL_QID\x010",
    queue_id=4,
    queue_offset=7,
    commit_log_offset=1234,
    born_timestamp_ms=1_700_000_000_000,
    born_host=Host.of("10.1.2.3", 4567),
    store_timestamp_ms=1_700_000_000_123,
    store_host=Host.of("127.0.0.1", 10911),
)
"""A message of level 5 as a 4.9 broker stored it; RocketMQ's own decoder has read these bytes."""


def _tables(*layouts: Layout) -> Callable[[], str]:
    return lambda: "\n\n".join(layout.markdown() for layout in layouts)


def _host_variants() -> str:
    rows = [
        "| sys_flag | head | size | store_timestamp_ms at | body length at |",
        "|---|---|---|---|---|",
    ]
    for flag, head in ((0, HEAD_V4_V4), (0x10, HEAD_V6_V4), (0x20, HEAD_V4_V6), (0x30, HEAD_V6_V6)):
        at = head.offset_of("store_timestamp_ms")
        rows.append(f"| {flag:#04x} | {head.name} | {head.size} | {at} | {head.size} |")
    return "\n".join(rows)


def _run_lengths() -> str:
    rows = ["| run | length field | holds |", "|---|---|---|"]
    for label, run in (
        ("body", BODY_RUN),
        ("topic, V1", TOPIC_RUN_V1),
        ("topic, V2", TOPIC_RUN_V2),
        ("properties", PROPERTIES_RUN),
    ):
        [field] = run.length.fields
        rows.append(f"| {label} | {field.kind} | {field.meaning} |")
    return "\n".join(rows)


def _annotated(layout: Layout, data: bytes, at: int = 0) -> Iterator[str]:
    """A line for each field: where it is, its bytes, its name and value."""
    values = layout.decode_at(data, at)
    ends = [layout.offset_of(field.name) for field in layout.fields[1:]] + [layout.size]
    for field, end in zip(layout.fields, ends, strict=True):
        start = layout.offset_of(field.name)
        value: object = values[field.name]
        shown = ".".join(map(str, value)) if isinstance(value, bytes) else str(value)
        yield f"{at + start:5d}  {data[at + start : at + end].hex():18s}  {field.name} = {shown}"


def _annotated_record() -> str:
    data = encode_message(EXAMPLE)
    lines = list(_annotated(HEAD_V4_V4, data))
    place = HEAD_V4_V4.size
    for run in runs(EXAMPLE.magic):
        length = run.length.decode_at(data, place)["length"]
        field = data[place : place + run.length.size].hex()
        lines.append(f"{place:5d}  {field:18s}  {run.name} length = {length}")
        place += run.length.size
        raw = data[place : place + length]
        text = raw.decode()
        shown = text.replace("\x01", "␁").replace("\x02", "␂")
        start = raw.hex() if length <= 8 else raw[:8].hex() + "…"
        lines.append(f"{place:5d}  {start:18s}  {run.name} = {shown}")
        place += length
    return "```text\n" + "\n".join(lines) + "\n```"


def _annotated_bytes(layout: Layout, text: str) -> Callable[[], str]:
    data = bytes.fromhex(text)
    return lambda: "```text\n" + "\n".join(_annotated(layout, data)) + "\n```"


PARTS: dict[str, Callable[[], str]] = {
    "record head": _tables(HEAD_V4_V4),
    "host variants": _host_variants,
    "run lengths": _run_lengths,
    "record example": _annotated_record,
    "log blank": _tables(BLANK_RECORD),
    "log blank example": _annotated_bytes(BLANK_RECORD, "00000074cbd43194"),
    "dledger": _tables(ENTRY_HEAD, ENTRY_BLANK),
    "dledger example": _annotated_bytes(
        ENTRY_HEAD,
        "0000000100000c770000000000000001000000000000000100000000000007d0000000000000000000000000"
        "00000c47",
    ),
    "checkpoint": _tables(CHECKPOINT_5_5),
    "checkpoint sizes": lambda: "\n".join(
        f"- {layout.name}: the first {len(layout.fields)} fields, {layout.size} bytes"
        for layout in (CHECKPOINT_4_9, CHECKPOINT_5_3, CHECKPOINT_5_5)
    ),
    "log end": _tables(LOG_END),
    "queue": _tables(QUEUE_UNIT, EXT_UNIT),
    "queue example": _annotated_bytes(QUEUE_UNIT, "00000000000004d2000000b70000018bcfe652db"),
    "queue rows": _tables(QUEUE_ROW_KEY_HEAD, QUEUE_ROW_KEY_TAIL, QUEUE_ROW, QUEUE_END),
    "queue row example": _annotated_bytes(
        QUEUE_ROW, "00000000000000000000092f000001a20c6cda4e000001a20c6cd666"
    ),
    "wheel": _tables(SLOT),
    "wheel example": _annotated_bytes(
        SLOT, "000000006553ff10000000000000000000000000000000340000000200000000"
    ),
    "timer log": _tables(TIMER_UNIT, TIMER_BLANK),
    "timer log example": _annotated_bytes(
        TIMER_UNIT,
        "000000340000000000000000000000010000018bcfe56be80036ea9800000000000016f9000000cb95a7c512"
        "0000000000000000",
    ),
    "timer checkpoint": _tables(TIMER_CHECKPOINT),
    "own checkpoint": _tables(OWN_CHECKPOINT),
    "hierarchical wheel": _tables(
        BLOCK_KEY, WAITING_ROW, ID_KEY, ID_ROW, STATE, NEWEST, LAST_BATCH, BATCHES, TAKEN_OVER
    ),
    "time index": _tables(INDEX_UNIT, STATE_HEAD, STATE_BUCKET, STATE_TAIL),
    "timeline": _tables(TIMELINE_KEY, TIMELINE_PLACE, TIMELINE_CHECKPOINT),
    "timeline example": lambda: "\n\nand the value is\n\n".join(
        (
            _annotated_bytes(TIMELINE_KEY, "0000018bd01c5680")(),
            _annotated_bytes(TIMELINE_PLACE, "000000cb000000000000162e")(),
        )
    ),
}
"""What stands between the marks of each name."""


def format_markdown(page: str) -> str:
    """The page with every generated part renewed. Raises KeyError for a mark that has no part."""
    return _MARKED.sub(lambda mark: f"{mark[1]}{PARTS[mark[2]]()}\n{mark[3]}", page)


if __name__ == "__main__":
    FORMAT_PAGE.write_text(format_markdown(FORMAT_PAGE.read_text("utf-8")), "utf-8")
