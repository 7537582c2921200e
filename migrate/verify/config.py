# SPDX-License-Identifier: Apache-2.0
"""The small files of a target: what a broker needs for these messages, and what must not exist."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.files.config_files import (
    CONSUMER_OFFSETS,
    GROUPS,
    TOPICS,
    read_config,
    read_consumer_offsets,
    read_groups,
    read_topics,
)
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from migrate.report.marker import ConversionSettings
from migrate.settings import WHEEL
from migrate.verify.digests.side_kernels import OVERDUE_EARLIEST, OVERDUE_LATEST
from migrate.verify.report import OPENED, Problem
from migrate.verify.tasks import TopicUse
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics
from timer_wheel.format.wheel_file import snapshots

_RETRY = "%RETRY%"
_FORBIDDEN_CONFIG = ("delayOffset.json", "delayOffset.json.bak")


def group_problems(
    root: StoreRoot, source: StoreRoot | None, topics: Mapping[str, TopicUse]
) -> Iterator[Problem]:
    """What is wrong with the groups; ``topics`` are the real topics of the messages. Without a
    ``source`` only what the messages themselves tell.
    """
    groups, offsets = read_groups(root.path), read_consumer_offsets(root.path)
    wanted = {(topic, topic.removeprefix(_RETRY)) for topic in topics if topic.startswith(_RETRY)}
    expected = {group for _topic, group in wanted}
    if source is not None:
        readers = read_consumer_offsets(source.path)
        wanted |= {(topic, group) for topic, group in readers if topic in topics}
        expected |= read_groups(source.path).keys()
    for group in sorted(expected - groups.keys()):
        yield Problem(GROUPS, f"{group!r} is not there")
    for topic, group in sorted(wanted):
        queues = offsets.get((topic, group), {})
        absent = [
            number for number in range(topics[topic].max_queue_id + 1) if number not in queues
        ]
        if absent:
            what = f"{group!r} has no offset for queue {absent[0]} of {topic!r}: it may begin late"
            yield Problem(CONSUMER_OFFSETS, what, len(absent))
    for (topic, group), queues in sorted(offsets.items()):
        later = {number: offset for number, offset in queues.items() if offset}
        if later:
            number, offset = next(iter(later.items()))
            what = f"{group!r} begins at {offset} of queue {number} of {topic!r} and should at 0"
            yield Problem(CONSUMER_OFFSETS, what, len(later))


def config_problems(
    root: StoreRoot,
    topics: Mapping[str, TopicUse],
    settings: ConversionSettings,
    *,
    are_all: bool = True,
) -> Iterator[Problem]:
    """What is wrong with topics, configuration and counts of a target, not with its messages.

    ``topics`` are the real topics and their use, of all messages (``are_all``) or of some. Only a
    wheel's counts are kept in a file.
    """
    forbidden = [root.abort, root.checkpoint, *map(root.config_file, _FORBIDDEN_CONFIG)]
    for path in forbidden + [path for _, path in snapshots(root)]:
        if is_present(path):
            yield Problem("files", f"{path.relative_to(root.path)} must not be there")
    yield from _broker_problems(root)
    if settings.engine == WHEEL:
        yield from metrics_problems(root, topics, are_all=are_all)
    for name in (TOPICS, GROUPS, CONSUMER_OFFSETS):
        yield from (Problem(name, what) for what in read_config(root.path, name).problems)
    yield from _topic_problems(root, topics)


def _broker_problems(root: StoreRoot) -> Iterator[Problem]:
    """A broker makes these the moment it starts, as our own engine does, and no conversion."""
    left = [path.name for path in (root.lock, root.abort) if is_present(path)]
    if left:
        yield Problem(
            "files",
            f"{OPENED} ({', '.join(left)}): what a broker, or `delaywheel run`, has delivered or"
            " rolled since then is found missing or different",
        )


def metrics_problems(
    root: StoreRoot, topics: Mapping[str, TopicUse], *, are_all: bool
) -> Iterator[Problem]:
    """Topics that timermetrics counts too low, or too high where ``topics`` are of all messages."""
    content = read_small_file(root.config_file(TIMER_METRICS_NAME))
    if content is None:
        yield Problem(TIMER_METRICS_NAME, "not there: a broker would count below zero")
        return
    try:
        metrics = decode_timer_metrics(content)
    except FormatError as error:
        yield Problem(TIMER_METRICS_NAME, str(error))
        return
    stated = {topic: row.count for topic, row in metrics.topics.items() if row.count}
    for topic in sorted(stated.keys() | topics.keys()):
        right = topics[topic].count if topic in topics else 0
        count = stated.get(topic, 0)
        if count < right or (are_all and count > right):
            what = f"{topic!r}: {count} and should be {right}"
            yield Problem(TIMER_METRICS_NAME, what, abs(count - right))


def _topic_problems(root: StoreRoot, topics: Mapping[str, TopicUse]) -> Iterator[Problem]:
    configs = read_topics(root.path)
    for topic, use in sorted(topics.items()):
        config = configs.get(topic)
        if config is None or config.members.get("topicName") != topic:
            yield Problem(TOPICS, f"{topic!r} is not there: it has no route", use.count)
            continue
        counts = {"readQueueNums": config.read_queues, "writeQueueNums": config.write_queues}
        for name, queues in counts.items():
            if queues <= use.max_queue_id:
                what = f"{topic!r}: {name} is {queues}, queue {use.max_queue_id} is used"
                yield Problem(TOPICS, what)


def overdue_problems(overdue: NDArray[np.int64]) -> Iterator[Problem]:
    """Overdue messages are delivered in the order of their times, slot after slot.

    ``overdue`` is int64[slots, 2]: the earliest and latest out time of each slot before now.
    """
    oldest_first = overdue[::-1]
    used = oldest_first[oldest_first[:, OVERDUE_EARLIEST] <= oldest_first[:, OVERDUE_LATEST]]
    swapped = used[1:, OVERDUE_EARLIEST] < used[:-1, OVERDUE_LATEST]
    if swapped.any():
        yield Problem("timer wheel", "overdue messages are out of order", int(swapped.sum()))
