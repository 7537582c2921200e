# SPDX-License-Identifier: Apache-2.0
"""How many records a core writes and reads, in bulk and one by one, and what their CRC costs."""

import argparse
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import RESULTS, facts, keeping, prewarm
from legacy_levels.generate.records import Chunk
from message_store.base.clock import stopwatch_s
from message_store.columns.byte_column import ByteColumn
from message_store.columns.message_batch import decode_batch
from message_store.columns.property_column import Piece, hex_key_column, join_property_columns
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES
from message_store.format.message_codec import decode_message_at, encode_message
from message_store.kernels.crc import crc32, crc32_by_tables
from message_store.kernels.raw_memory import address_of

_SCALAR_SAMPLE = 20_000
_BODIES = (256, 1_024)
_RECORD_BYTES = 350
_HOST = bytes([127, 0, 0, 1])


def columns(count: int, body_bytes: int) -> tuple[list[Piece], ByteColumn]:
    """Properties and bodies of records as a wheel holds them."""
    rng = np.random.default_rng(1)
    block = rng.integers(0, 256, 1 << 20, np.uint8)
    starts = rng.integers(0, block.size - body_bytes, count)
    numbers = np.arange(count)
    pieces: list[Piece] = [
        ("REAL_TOPIC", ByteColumn.choose(["OrderTimeout", "PayNotify"], numbers % 2)),
        ("UNIQ_KEY", hex_key_column(b"7F00000100002A9F18B4AAC2", numbers, 8)),
        ("KEYS", hex_key_column(b"order-", numbers, 10)),
        ("TAGS", ByteColumn.choose(["create", "pay", "remind"], numbers % 3)),
        ("REAL_QID", numbers % 4),
        ("TIMER_OUT_MS", 1_793_000_000_000 + numbers),
    ]
    return pieces, ByteColumn(block, starts, np.full(count, body_bytes))


def chunk_of(pieces: list[Piece], body: ByteColumn) -> Chunk:
    """The messages, their properties joined from columns."""
    count = len(body)
    times_ms = np.full(count, 1_793_000_000_000)
    return Chunk(
        queue_id=np.zeros(count, np.int64),
        queue_offset=np.arange(count),
        born_ms=times_ms,
        stored_ms=times_ms,
        due_ms=times_ms,
        body=body,
        properties_text=join_property_columns(pieces),
    )


def one_round(count: int, body_bytes: int) -> dict[str, float]:
    """Nanoseconds a record of each step; the target's pages are fresh."""
    pieces, body = columns(count, body_bytes)
    prewarm(count * (body_bytes + _RECORD_BYTES))
    marks = [stopwatch_s()]
    chunk = chunk_of(pieces, body)
    marks.append(stopwatch_s())
    sizes = chunk.record_sizes(COMMIT_LOG_FILE_BYTES)
    positions = np.cumsum(sizes) - sizes
    target = np.empty(int(sizes.sum()), np.uint8)
    chunk.fill(slice(0, count), positions, address_of(target))
    marks.append(stopwatch_s())
    chunk.fill(slice(0, count), positions, address_of(target))
    marks.append(stopwatch_s())
    read = decode_batch(target, positions)
    marks.append(stopwatch_s())
    read.property("TAGS")
    marks.append(stopwatch_s())
    names = ("columns", "encode, fresh pages", "encode, warm pages", "decode", "find a property")
    took = [(after - before) / count * 1e9 for before, after in pairwise(marks)]
    sample = min(count, _SCALAR_SAMPLE)
    messages = [read.message(row) for row in range(sample)]
    started = stopwatch_s()
    records = [encode_message(message) for message in messages]
    middle = stopwatch_s()
    for record in records:
        decode_message_at(record)
    ended = stopwatch_s()
    one_by_one = {
        "encode, one by one": (middle - started) / sample * 1e9,
        "decode, one by one": (ended - middle) / sample * 1e9,
    }
    return dict(zip(names, took, strict=True)) | one_by_one


def crc_rates(megabytes: int = 64) -> dict[str, float]:
    """GB/s over one buffer of 256 KiB."""
    data = np.random.default_rng(2).integers(0, 256, 256 << 10, np.uint8)
    plain = data.tobytes()
    ways: dict[str, Callable[[], int]] = {
        "kernel, as chosen here": lambda: crc32(address_of(data), data.size),
        "kernel, by tables": lambda: crc32_by_tables(address_of(data), data.size),
        "zlib": lambda: zlib.crc32(plain),
    }
    rates = {}
    for name, compute in ways.items():
        times = megabytes * 4
        started = stopwatch_s()
        for _ in range(times):
            compute()
        rates[name] = times * data.size / (stopwatch_s() - started) / 1e9
    return rates


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    measured: dict[str, Any] = {
        "facts": facts(options.results.parent),
        "messages": options.messages,
        "rounds": {body_bytes: [] for body_bytes in _BODIES},
        "crc_gb_per_s": {},
    }
    with keeping("codec", measured, options.results):
        for body_bytes, rounds in measured["rounds"].items():
            one_round(options.messages, body_bytes)  # a round to throw away
            for _ in range(options.rounds):
                rounds.append(one_round(options.messages, body_bytes))
        measured["crc_gb_per_s"] |= crc_rates()


if __name__ == "__main__":
    main()
