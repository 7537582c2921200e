# SPDX-License-Identifier: Apache-2.0
"""Generates a level store with any number of pending messages, as fast as the disk takes it.

The store looks as if a broker had received messages at a steady rate for each level until
``now_ms``. Unless asked otherwise all messages are pending, each younger than its level's delay,
and the log is in the order of storing. Equal arguments give equal bytes. One chunk is generated
while another is written, so memory does not grow with the number of messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np

from legacy_levels.delay_offsets import encode_delay_offsets
from legacy_levels.generate.messages import (
    GROUP,
    QUEUES_PER_TOPIC,
    ExtraProperty,
    Recipe,
    arrivals,
    body_block,
    chunk_of,
    topic_names,
)
from legacy_levels.generate.records import Chunk
from message_store.base.closed_on_exit import ClosedOnExit
from message_store.base.errors import BadFieldError, TargetError, disk_errors
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    GroupConfig,
    TopicConfig,
    encode_consumer_offsets,
    encode_groups,
    encode_topics,
)
from message_store.files.live_segments import LiveSegments
from message_store.files.small_files import refuse_dangling_link, replace_file
from message_store.files.store_root import COMMIT_LOG_FILE_BYTES, QUEUE_FILE_BYTES, StoreRoot
from message_store.format import properties as names
from message_store.format.broker_json import ConfigDialect
from message_store.format.checkpoint import CHECKPOINT_4_9, CHECKPOINT_5_5, StoreCheckpoint
from message_store.format.delay_levels import DEFAULT_LEVELS, DelayLevels
from message_store.format.java_numbers import LONG_MAX
from message_store.format.queue_unit import QUEUE_UNIT
from message_store.writing.log import LiveLog

DIALECTS = {"4.9": ConfigDialect.ROCKETMQ_4_9, "5.x": ConfigDialect.ROCKETMQ_5_5}


@attrs.frozen
class GeneratedStore:
    """What was made: how many messages, how much log, and when they are due."""

    messages: int
    commit_log_bytes: int
    messages_by_level: dict[int, int]
    due_min_ms: int | None
    due_max_ms: int | None


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
    extra_property: ExtraProperty | None = None,
) -> GeneratedStore:
    """Make a store with ``messages`` in ``levels``, an equal share in each.

    Bodies are random bytes, ``body_bytes`` long and up to a quarter more or less. Topics are names,
    or how many to make up; the first gets 30 % of the messages, the second as much of what is left,
    and so on. ``dialect`` is ``4.9`` or ``5.x``: the ending of properties texts and the style of
    the configuration files. ``extra_property`` makes records of unusual shapes.

    What was made is removed again where that ends in an error, or is interrupted.
    Raises TargetError when ``path`` is not empty or the disk refuses, BadFieldError for a level
    that the table does not have, or has without a delay, for a number that makes no sense, and for
    a message that no log file can hold.
    """
    root, delays = StoreRoot(path), DelayLevels.parse(level_table)
    shortest_ms = min(map(delays.delay_ms, levels), default=0)
    count = topics if isinstance(topics, int) else len(topics)
    _require_least(messages=(messages, 0), body_bytes=(body_bytes, 0), topics=(count, 1))
    _require_least(shortest_delay_ms=(shortest_ms, 1))
    rng = np.random.default_rng(seed)
    delays_ms = {level: delays.delay_ms(level) for level in sorted(set(levels))}
    recipe = Recipe(
        shortest_body=body_bytes * 75 // 100,
        longest_body=body_bytes * 125 // 100,
        topics=topic_names(topics) if isinstance(topics, int) else tuple(topics),
        now_ms=now_ms,
        delays=delays,
        dialect=_config_dialect(dialect),
        body_block=body_block(rng, body_bytes),
        seed=seed,
        extra_property=extra_property,
    )
    chunks = _chunks(recipe, rng, messages, delays_ms)
    return _write_store(root, recipe, chunks, delays_ms, commit_log_file_bytes, queue_file_bytes)


def _write_store(
    root: StoreRoot,
    recipe: Recipe,
    chunks: Iterator[Chunk],
    delays_ms: dict[int, int],
    *file_bytes: int,
) -> GeneratedStore:
    with _whole_or_nothing(root):
        with _StoreWriter(root, delays_ms, *file_bytes) as writer:
            _write_beside(chunks, writer)
            made = writer.account()
        _write_small_files(root, recipe, writer.last_stored_ms)
        root.mark_stopped()
    return made


def _require_least(**numbers: tuple[int, int]) -> None:
    """Raise BadFieldError for the first number that is less than what follows it."""
    for name, (number, least) in numbers.items():
        if number < least:
            raise BadFieldError(name, expected=f"at least {least}", found=number)


def _config_dialect(dialect: str) -> ConfigDialect:
    if dialect not in DIALECTS:
        raise BadFieldError("dialect", expected=" or ".join(DIALECTS), found=dialect)
    return DIALECTS[dialect]


def _chunks(
    recipe: Recipe, rng: np.random.Generator, messages: int, spans_ms: dict[int, int]
) -> Iterator[Chunk]:
    counts = dict.fromkeys(spans_ms, 0)
    for levels, ages_ms in arrivals(rng, messages, spans_ms):
        yield chunk_of(recipe, rng, levels, ages_ms, counts)
        for level in counts:
            counts[level] += int(np.count_nonzero(levels == level))


def _write_beside(chunks: Iterator[Chunk], writer: "_StoreWriter") -> None:
    """Write a chunk in a thread of its own while the next one is made."""
    with ThreadPoolExecutor(1, "generated-store") as thread:
        writing: Future[None] | None = None
        for chunk in chunks:
            if writing is not None:
                writing.result()
            writing = thread.submit(writer.append, chunk)
        if writing is not None:
            writing.result()


class _StoreWriter(ClosedOnExit):
    """The log and the queues of a store that grows by chunks."""

    def __init__(
        self,
        root: StoreRoot,
        levels: Iterable[int],
        commit_log_file_bytes: int,
        queue_file_bytes: int,
    ) -> None:
        self.last_stored_ms = 0
        self._log = LiveLog(LiveSegments(root.commit_log, commit_log_file_bytes), 0, 0)
        self._queues = {
            level: LiveSegments(root.level_queue(level), queue_file_bytes) for level in levels
        }
        self._counts = dict.fromkeys(self._queues, 0)
        self._due_min_ms, self._due_max_ms = LONG_MAX, 0

    def append(self, chunk: Chunk) -> None:
        """Write a chunk's records, and its entries of each queue. Raises TargetError."""
        sizes = chunk.record_sizes(self._log.file_bytes)
        units = np.empty(len(sizes), QUEUE_UNIT.dtype)
        units["commit_log_offset"] = self._log.append_rows(sizes, chunk.fill)
        units["size_bytes"] = sizes
        units["tags_code"] = chunk.due_ms
        for level, queue in self._queues.items():
            rows = np.flatnonzero(chunk.queue_id == level - 1)
            queue.write_at(self._counts[level] * QUEUE_UNIT.size, units[rows].view(np.uint8).data)
            self._counts[level] += len(rows)
        self.last_stored_ms = int(chunk.stored_ms[-1])
        self._due_min_ms = min(self._due_min_ms, int(chunk.due_ms.min()))
        self._due_max_ms = max(self._due_max_ms, int(chunk.due_ms.max()))

    def account(self) -> GeneratedStore:
        """What has been made so far."""
        some = self._due_max_ms > 0
        return GeneratedStore(
            messages=sum(self._counts.values()),
            commit_log_bytes=self._log.end,
            messages_by_level=dict(self._counts),
            due_min_ms=self._due_min_ms if some else None,
            due_max_ms=self._due_max_ms if some else None,
        )

    def close(self) -> None:
        for writer in (self._log.segments, *self._queues.values()):
            writer.close()


@contextmanager
def _whole_or_nothing(root: StoreRoot) -> Iterator[None]:
    """Around the making of a store, in a directory that is new or empty; it is so again after an
    error or an interrupt. Raises TargetError.
    """
    _require_empty(root.path)
    was_there = root.path.exists()
    try:
        _make_empty_store(root)
        yield
    except BaseException:  # an interrupt as well: a half store is of no use to anybody
        root.discard(keeps_directory=was_there)
        raise


def _require_empty(path: Path) -> None:
    """Raise TargetError unless there is nothing, or an empty directory."""
    with disk_errors(TargetError, path, "read"):
        if path.exists() and not path.is_dir():
            raise TargetError(f"{path}: is a file, not a directory")
        if path.exists() and any(path.iterdir()):
            raise TargetError(f"{path}: not empty; a store is made in a directory of its own")


def _make_empty_store(root: StoreRoot) -> None:
    """A store that counts as not stopped cleanly, so that what is half made looks like it."""
    path = root.path
    with disk_errors(TargetError, path, "written"):
        refuse_dangling_link(path)
        path.mkdir(parents=True, exist_ok=True)
        root.mark_open(b"")
        root.commit_log.mkdir()


def _write_small_files(root: StoreRoot, recipe: Recipe, last_stored_ms: int) -> None:
    dialect = recipe.dialect
    level_topic = TopicConfig(names.LEVEL_TOPIC, recipe.delays.max_level, recipe.delays.max_level)
    queues = dict.fromkeys(recipe.topics, QUEUES_PER_TOPIC)
    topics = [TopicConfig(name, count, count) for name, count in queues.items()]
    offsets = {(name, GROUP): dict.fromkeys(range(count), 0) for name, count in queues.items()}
    delivered = dict.fromkeys(range(1, recipe.delays.max_level + 1), 0)
    files = {
        TOPICS: encode_topics([level_topic, *topics], dialect),
        GROUPS: encode_groups([GroupConfig(GROUP)], dialect),
        CONSUMER_OFFSETS: encode_consumer_offsets(offsets, dialect),
        "delayOffset.json": encode_delay_offsets(delivered, dialect),
    }
    for name, content in files.items():
        replace_file(root.config_file(name), content)
    checkpoint = StoreCheckpoint(last_stored_ms, last_stored_ms)
    layout = CHECKPOINT_5_5 if dialect.has_state_version else CHECKPOINT_4_9
    replace_file(root.checkpoint, checkpoint.encode(layout))
