# SPDX-License-Identifier: Apache-2.0
"""Makes a level store with any number of pending messages, as fast as the disk takes it.

The store is what a broker would have left behind at ``now_ms`` that had been receiving messages at
one steady rate for each level: everything still waits, a level's messages are as old as its delay
at most, and the log is in the order of storing. The same arguments make the same bytes. Work is
done in chunks, so memory does not grow with the number of messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray

from legacy_levels.delay_offsets import encode_delay_offsets
from message_store import properties as names
from message_store.batch_codec import Placement, place_batch, write_batch
from message_store.byte_column import ByteColumn, Bytes, Int64s
from message_store.consume_queue import QUEUE_UNIT
from message_store.delay_levels import DEFAULT_LEVELS, DelayLevels
from message_store.errors import TargetError
from message_store.fastjson import ConfigDialect
from message_store.message_batch import StoredBatch
from message_store.property_column import hex_key_column, join_property_columns
from message_store.segment_files import SegmentWriter
from message_store.small_files import replace_file
from message_store.store_checkpoint import CHECKPOINT_4_9, CHECKPOINT_5_5, StoreCheckpoint
from message_store.store_config import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    GroupConfig,
    TopicConfig,
    encode_consumer_offsets,
    encode_groups,
    encode_topics,
)
from message_store.store_root import COMMIT_LOG_FILE_BYTES, QUEUE_FILE_BYTES, StoreRoot

GROUP = "generated_group"
QUEUES_PER_TOPIC = 4
DIALECTS = {"4.9": ConfigDialect.ROCKETMQ_4_9, "5.x": ConfigDialect.ROCKETMQ_5_5}

_CHUNK = 1 << 15
_BODY_BLOCK_BYTES = 8 << 20
_UNIQUE_KEY_PREFIX = b"7F00000100002A9F18B4AAC2"
_HOST_IP = bytes([127, 0, 0, 1])
_CLIENT_IP = bytes([10, 1, 2, 3])
_TAGS = ["", "create", "pay", "timeout", "remind"]

Generator = np.random.Generator


@attrs.frozen
class GeneratedStore:
    """What was made: how many messages, how much log, and when they are due."""

    messages: int
    commit_log_bytes: int
    messages_by_level: dict[int, int]
    due_min_ms: int | None
    due_max_ms: int | None


@attrs.frozen(kw_only=True)
class _Recipe:
    """The arguments, and what follows from them."""

    root: StoreRoot
    body_bytes: int
    topics: tuple[str, ...]
    now_ms: int
    delays: DelayLevels
    dialect: ConfigDialect
    body_block: Bytes


def generate_level_store(
    path: Path,
    *,
    messages: int,
    now_ms: int,
    body_bytes: int = 200,
    levels: Sequence[int] = range(1, 19),
    topics: int | Sequence[str] = 8,
    seed: int = 0,
    dialect: str = "4.9",
    level_table: str = DEFAULT_LEVELS,
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES,
    queue_file_bytes: int = QUEUE_FILE_BYTES,
) -> GeneratedStore:
    """Make a store with ``messages`` waiting in ``levels``, an equal share in each.

    Bodies are random bytes, between three and five quarters of ``body_bytes`` long. Topics are
    names, or how many to make up; the first gets the most messages. ``dialect`` is ``4.9`` or
    ``5.x``: the ending of properties texts and the style of the configuration files.

    Raises TargetError when ``path`` is not empty or the disk refuses, BadFieldError for a level
    that the table does not have or a message that no log file can hold.
    """
    _require_empty(path)
    rng = np.random.default_rng(seed)
    delays = DelayLevels.parse(level_table)
    delays_ms = {level: delays.delay_ms(level) for level in sorted(set(levels))}
    recipe = _Recipe(
        root=StoreRoot(path),
        body_bytes=body_bytes,
        topics=_topic_names(topics) if isinstance(topics, int) else tuple(topics),
        now_ms=now_ms,
        delays=delays,
        dialect=DIALECTS[dialect],
        body_block=rng.integers(0, 256, _BODY_BLOCK_BYTES + 2 * body_bytes, np.uint8),
    )
    with ExitStack() as files:
        log = files.enter_context(SegmentWriter(recipe.root.commit_log, commit_log_file_bytes))
        queues = {
            level: files.enter_context(
                SegmentWriter(recipe.root.level_queue(level), queue_file_bytes)
            )
            for level in delays_ms
        }
        made, last_stored_ms = _write_messages(
            recipe, rng, _arrivals(rng, messages, delays_ms), log, queues
        )
    _write_small_files(recipe, last_stored_ms)
    return made


def _write_messages(
    recipe: _Recipe,
    rng: Generator,
    arrivals: Iterator[tuple[NDArray[np.uint8], Int64s]],
    log: SegmentWriter,
    queues: dict[int, SegmentWriter],
) -> tuple[GeneratedStore, int]:
    """Append each chunk to the log and the queues; also says when the last one was stored."""
    counts = dict.fromkeys(queues, 0)
    end, last_stored_ms = 0, 0
    due: list[int] = []
    buffer = np.empty(0, np.uint8)
    for levels, ages_ms in arrivals:
        batch, due_ms = _batch_of(recipe, rng, levels, ages_ms, counts)
        placement = place_batch(batch, end, log.file_bytes)
        needed = placement.end - end
        if needed > buffer.size:
            buffer = np.empty(needed + needed // 4, np.uint8)
        write_batch(batch, placement, buffer)
        log.write_at(end, buffer[:needed].data)
        _write_units(queues, counts, levels, placement, due_ms)
        end = placement.end
        last_stored_ms = int(batch.store_timestamp_ms[-1])
        due = [min([int(due_ms.min()), *due[:1]]), max([int(due_ms.max()), *due[1:]])]
    made = GeneratedStore(
        messages=sum(counts.values()),
        commit_log_bytes=end,
        messages_by_level=counts,
        due_min_ms=due[0] if due else None,
        due_max_ms=due[1] if due else None,
    )
    return made, last_stored_ms


def _require_empty(path: Path) -> None:
    try:
        if path.is_file():
            raise TargetError(f"{path}: is a file, not a directory")
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise TargetError(f"{path}: not empty")
    except OSError as error:
        raise TargetError(f"{path}: cannot be written: {error.strerror}") from error


def _topic_names(count: int) -> tuple[str, ...]:
    known = ("OrderTimeout", "PayNotify", "coupon-expire", "CartReminder")
    return tuple(known[i] if i < len(known) else f"Topic_{i:03d}" for i in range(count))


def _arrivals(
    rng: Generator, messages: int, delays_ms: dict[int, int]
) -> Iterator[tuple[NDArray[np.uint8], Int64s]]:
    """Levels and ages of the messages, the oldest first, a chunk at a time.

    A level's ages are spread evenly over its delay. Instead of drawing all and sorting, time is cut
    into windows, and each window draws how many of a level's remaining messages fall into it.
    """
    share, rest = divmod(messages, len(delays_ms))
    left = {level: share + (n < rest) for n, level in enumerate(delays_ms)}
    top_ms = max(delays_ms.values())
    while top_ms > 0:
        open_levels = [level for level, delay_ms in delays_ms.items() if delay_ms >= top_ms]
        next_delay_ms = max((d for d in delays_ms.values() if d < top_ms), default=0)
        waiting = sum(left[level] for level in open_levels)
        width_ms = max(1, top_ms * _CHUNK // max(1, waiting))
        bottom_ms = max(next_delay_ms, top_ms - width_ms)
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


def _batch_of(
    recipe: _Recipe,
    rng: Generator,
    levels: NDArray[np.uint8],
    ages_ms: Int64s,
    counts: dict[int, int],
) -> tuple[StoredBatch, Int64s]:
    """The records of a chunk, and when each is due; ``counts`` says how many each level had."""
    rows = len(levels)
    numbers = sum(counts.values()) + np.arange(rows)
    store_ms = recipe.now_ms - ages_ms
    delays = np.array([0, *recipe.delays.delays_ms])
    topics = np.minimum(rng.geometric(0.3, rows) - 1, len(recipe.topics) - 1)
    # A tenth of what clients send has no key, a fifth no tag.
    keys = hex_key_column(b"order-", rng.integers(0, 1 << 40, rows), 10)
    keys = ByteColumn(keys.data, keys.starts, np.where(rng.random(rows) < 0.1, 0, keys.lengths))
    level_names = [str(level) for level in range(recipe.delays.max_level + 1)]
    properties = join_property_columns(
        [
            (names.REAL_TOPIC, ByteColumn.choose(recipe.topics, topics)),
            (names.UNIQUE_KEY, hex_key_column(_UNIQUE_KEY_PREFIX, numbers, 8)),
            (names.DELAY, ByteColumn.choose(level_names, levels)),
            (names.KEYS, keys),
            (names.REAL_QUEUE_ID, rng.integers(0, QUEUES_PER_TOPIC, rows)),
            (names.TAGS, ByteColumn.choose(_TAGS, rng.integers(0, len(_TAGS), rows))),
        ],
        closed=recipe.dialect.has_state_version,
    )
    shortest, longest = recipe.body_bytes * 3 // 4, recipe.body_bytes * 5 // 4
    body = ByteColumn(
        recipe.body_block,
        rng.integers(0, _BODY_BLOCK_BYTES, rows),
        rng.integers(shortest, longest + 1, rows),
    )
    batch = StoredBatch(
        body=body,
        topic=ByteColumn.repeat(names.LEVEL_TOPIC, rows),
        properties_text=properties,
        born_ip=ByteColumn.repeat(_CLIENT_IP, rows),
        store_ip=ByteColumn.repeat(_HOST_IP, rows),
        born_port=np.full(rows, 49_152),
        store_port=np.full(rows, 10_911),
        queue_id=levels.astype(np.int64) - 1,
        queue_offset=_queue_offsets(levels, counts),
        commit_log_offset=np.zeros(rows, np.int64),
        born_timestamp_ms=store_ms - rng.integers(0, 20, rows),
        store_timestamp_ms=store_ms,
    )
    return batch, store_ms + delays[levels]


def _queue_offsets(levels: NDArray[np.uint8], counts: dict[int, int]) -> Int64s:
    offsets = np.empty(len(levels), np.int64)
    for level, before in counts.items():
        rows = np.flatnonzero(levels == level)
        offsets[rows] = np.arange(before, before + len(rows))
    return offsets


def _write_units(
    queues: dict[int, SegmentWriter],
    counts: dict[int, int],
    levels: NDArray[np.uint8],
    placement: Placement,
    due_ms: Int64s,
) -> None:
    """Append the chunk to the levels' queues, and count it."""
    units = np.empty(len(levels), QUEUE_UNIT.dtype)
    units["commit_log_offset"] = placement.positions
    units["size_bytes"] = placement.sizes
    units["tags_code"] = due_ms
    for level, queue in queues.items():
        chosen = units[levels == level]
        queue.write_at(counts[level] * QUEUE_UNIT.size, chosen.view(np.uint8).data)
        counts[level] += len(chosen)


def _write_small_files(recipe: _Recipe, last_stored_ms: int) -> None:
    dialect = recipe.dialect
    level_topic = TopicConfig(names.LEVEL_TOPIC, recipe.delays.max_level, recipe.delays.max_level)
    topics = [TopicConfig(name, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC) for name in recipe.topics]
    offsets = {(name, GROUP): dict.fromkeys(range(QUEUES_PER_TOPIC), 0) for name in recipe.topics}
    levels = range(1, recipe.delays.max_level + 1)
    files = {
        TOPICS: encode_topics([level_topic, *topics], dialect),
        GROUPS: encode_groups([GroupConfig(GROUP)], dialect),
        CONSUMER_OFFSETS: encode_consumer_offsets(offsets, dialect),
        "delayOffset.json": encode_delay_offsets(dict.fromkeys(levels, 0), dialect),
    }
    for name, content in files.items():
        replace_file(recipe.root.config_file(name), content)
    checkpoint = StoreCheckpoint(last_stored_ms, last_stored_ms)
    layout = CHECKPOINT_5_5 if dialect.has_state_version else CHECKPOINT_4_9
    replace_file(recipe.root.checkpoint, checkpoint.encode(layout))
