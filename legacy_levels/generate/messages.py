# SPDX-License-Identifier: Apache-2.0
"""The messages of a generated level store, a chunk at a time: levels, times and content."""

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.generate.records import Chunk
from message_store.columns.byte_column import ByteColumn, Bytes, Int64s
from message_store.columns.property_column import hex_key_column, join_property_columns
from message_store.format import properties as names
from message_store.format.broker_json import ConfigDialect
from message_store.format.delay_levels import DelayLevels

GROUP = "generated_group"
QUEUES_PER_TOPIC = 4

_CHUNK = 1 << 15
_BODY_BLOCK_BYTES = 8 << 20
_CLIENT = 0x2A9F18B4
_CLIENT_BITS = 48
_TAGS = ["", "create", "pay", "timeout", "remind"]
_FIRST_TOPICS_SHARE = 0.3
"""Of what is left the next topic gets as much, and so on."""

Generator = np.random.Generator


@attrs.frozen
class ExtraProperty:
    """A property that ``percent`` of the messages have besides the usual ones, as the last."""

    name: str
    value: str
    percent: int = 100


@attrs.frozen(kw_only=True)
class Recipe:
    """What the messages shall be like: bodies of ``shortest_body`` to ``longest_body`` bytes."""

    shortest_body: int
    longest_body: int
    topics: tuple[str, ...]
    now_ms: int
    delays: DelayLevels
    dialect: ConfigDialect
    body_block: Bytes
    seed: int = 0
    extra_property: ExtraProperty | None = None

    @property
    def unique_key_prefix(self) -> bytes:
        """What all unique keys begin with: address, process and class loader of a client, time.

        The client is another for another seed, so that merged stores hold no key twice.
        """
        client = (_CLIENT + self.seed) % (1 << _CLIENT_BITS)
        return b"7F000001%012XAAC2" % client


def body_block(rng: Generator, body_bytes: int) -> Bytes:
    """Random bytes that bodies of up to twice ``body_bytes`` are cut from."""
    return rng.integers(0, 256, _BODY_BLOCK_BYTES + 2 * body_bytes, np.uint8)


def topic_names(count: int) -> tuple[str, ...]:
    """Names of so many topics."""
    real_names = ("OrderTimeout", "PayNotify", "coupon-expire", "CartReminder")
    return tuple(real_names[i] if i < len(real_names) else f"Topic_{i:03d}" for i in range(count))


def arrivals(
    rng: Generator, messages: int, spans_ms: dict[int, int]
) -> Iterator[tuple[NDArray[np.uint8], Int64s]]:
    """Levels and ages of the messages, the oldest first, a chunk at a time.

    A level's ages are spread evenly over its span. Instead of drawing all and sorting, time is cut
    into windows, and each window draws how many of a level's remaining messages fall into it.
    """
    share, rest = divmod(messages, len(spans_ms))
    left = {level: share + (n < rest) for n, level in enumerate(spans_ms)}
    top_ms = max(spans_ms.values())
    while top_ms > 0:
        open_levels = [level for level, span_ms in spans_ms.items() if span_ms >= top_ms]
        next_span_ms = max((d for d in spans_ms.values() if d < top_ms), default=0)
        waiting = sum(left[level] for level in open_levels)
        width_ms = max(1, top_ms * _CHUNK // max(1, waiting))
        bottom_ms = max(next_span_ms, top_ms - width_ms)
        counts = []
        for level in open_levels:
            share_here = (top_ms - bottom_ms) / top_ms
            counts.append(int(rng.binomial(left[level], share_here)) if bottom_ms else left[level])
            left[level] -= counts[-1]
        if sum(counts):
            ages_ms = rng.integers(bottom_ms, top_ms, sum(counts))
            order = np.argsort(-ages_ms, kind="stable")
            yield np.repeat(np.array(open_levels, np.uint8), counts)[order], ages_ms[order]
        top_ms = bottom_ms


def chunk_of(
    recipe: Recipe,
    rng: Generator,
    levels: NDArray[np.uint8],
    ages_ms: Int64s,
    counts: dict[int, int],
) -> Chunk:
    """The messages of a chunk; ``counts`` says how many each level had."""
    rows = len(levels)
    numbers = sum(counts.values()) + np.arange(rows)
    stored_ms = recipe.now_ms - ages_ms
    delays = np.array([0, *recipe.delays.delays_ms])
    topics = np.minimum(rng.geometric(_FIRST_TOPICS_SHARE, rows) - 1, len(recipe.topics) - 1)
    properties = _properties_of(recipe, rng, levels, numbers, topics)
    body = ByteColumn(
        recipe.body_block,
        rng.integers(0, _BODY_BLOCK_BYTES, rows),
        rng.integers(recipe.shortest_body, recipe.longest_body + 1, rows),
    )
    return Chunk(
        queue_id=levels.astype(np.int64) - 1,
        queue_offset=_queue_offsets(levels, counts),
        born_ms=stored_ms - rng.integers(0, 20, rows),
        stored_ms=stored_ms,
        due_ms=stored_ms + delays[levels],
        body=body,
        properties_text=properties,
    )


def _properties_of(
    recipe: Recipe,
    rng: Generator,
    levels: NDArray[np.uint8],
    numbers: Int64s,
    topics: Int64s,
) -> ByteColumn:
    rows = len(levels)
    # A tenth of what clients send has no key, a fifth no tag.
    keys = hex_key_column(b"order-", rng.integers(0, 1 << 40, rows), 10)
    keys = ByteColumn(keys.data, keys.starts, np.where(rng.random(rows) < 0.1, 0, keys.lengths))
    level_names = [str(level) for level in range(recipe.delays.max_level + 1)]
    queue_ids = rng.integers(0, QUEUES_PER_TOPIC, rows)
    columns: list[tuple[str, ByteColumn | Int64s]] = [
        (names.REAL_TOPIC, ByteColumn.choose(recipe.topics, topics)),
        (names.UNIQUE_KEY, hex_key_column(recipe.unique_key_prefix, numbers, 8)),
        (names.DELAY, ByteColumn.choose(level_names, levels)),
        (names.KEYS, keys),
        (names.REAL_QUEUE_ID, queue_ids),
        (names.TAGS, ByteColumn.choose(_TAGS, rng.integers(0, len(_TAGS), rows))),
    ]
    if (extra := recipe.extra_property) is not None:
        has_it = (rng.random(rows) * 100 < extra.percent).astype(np.int64)
        columns.append((extra.name, ByteColumn.choose(("", extra.value), has_it)))
    return join_property_columns(columns, closed=recipe.dialect.has_state_version)


def _queue_offsets(levels: NDArray[np.uint8], counts: dict[int, int]) -> Int64s:
    offsets = np.empty(len(levels), np.int64)
    for level, before in counts.items():
        rows = np.flatnonzero(levels == level)
        offsets[rows] = np.arange(before, before + len(rows))
    return offsets
