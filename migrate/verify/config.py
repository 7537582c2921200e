# SPDX-License-Identifier: Apache-2.0
"""The small files of a target: what a broker must find for these messages, and what must not be
there.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import FormatError
from message_store.files.small_files import is_present, read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import parse
from migrate.report.conversion_parameters import ConversionSettings
from migrate.settings import WHEEL
from migrate.verify.report import OPENED, Problem
from migrate.verify.source_kernel import OVERDUE_EARLIEST, OVERDUE_LATEST
from migrate.verify.tasks import TopicUse
from timer_wheel.format.metrics import TIMER_METRICS_NAME, decode_timer_metrics
from timer_wheel.format.wheel_file import snapshots

OFFSETS_NAME = "consumerOffset.json"
GROUPS_NAME = "subscriptionGroup.json"
_RETRY = "%RETRY%"


def group_problems(
    root: StoreRoot, source: StoreRoot | None, topics: Mapping[str, TopicUse]
) -> Iterator[Problem]:
    """What is wrong with the groups; ``topics`` are the real topics of the messages. Without a
    ``source`` only what the messages themselves tell.
    """
    groups, offsets = _groups(root), _offsets(root)
    wanted = {(topic, topic.removeprefix(_RETRY)) for topic in topics if topic.startswith(_RETRY)}
    known = {group for _topic, group in wanted}
    if source is not None:
        wanted |= {(topic, group) for topic, group in _offsets(source) if topic in topics}
        known |= _groups(source)
    for group in sorted(known - groups):
        yield Problem(GROUPS_NAME, f"{group!r} is not there")
    for topic, group in sorted(wanted):
        queues = offsets.get((topic, group), {})
        absent = [
            number for number in range(topics[topic].max_queue_id + 1) if number not in queues
        ]
        if absent:
            what = f"{group!r} has no offset for queue {absent[0]} of {topic!r}: it may begin late"
            yield Problem(OFFSETS_NAME, what, len(absent))
    for (topic, group), queues in sorted(offsets.items()):
        later = {number: place for number, place in queues.items() if place != 0}
        for number, place in list(later.items())[:1]:
            what = f"{group!r} begins at {place} of queue {number} of {topic!r} and should at 0"
            yield Problem(OFFSETS_NAME, what, len(later))


def _groups(root: StoreRoot) -> set[str]:
    return {str(name) for name in _table(root, GROUPS_NAME, "subscriptionGroupTable")}


def _offsets(root: StoreRoot) -> dict[tuple[str, str], dict[int, int]]:
    """Topic and group to queue id to offset; what cannot be understood is passed over."""
    found = {}
    for name, queues in _table(root, OFFSETS_NAME, "offsetTable").items():
        topic, separator, group = str(name).rpartition("@")
        if separator and isinstance(queues, dict):
            found[topic, group] = {
                int(number): place
                for number, place in queues.items()
                if re.fullmatch(r"[0-9]{1,10}", str(number)) and isinstance(place, int)
            }
    return found


def _table(root: StoreRoot, name: str, key: str) -> dict[Any, Any]:
    """One table of a configuration file, or of its .bak where that cannot be read."""
    path = root.config_file(name)
    for place in (path, path.with_name(f"{name}.bak")):
        try:
            whole = parse(read_small_file(place) or b"")
        except FormatError:
            continue
        table = whole.get(key) if isinstance(whole, dict) else None
        if isinstance(table, dict):
            return table
    return {}


TOPICS_NAME = "topics.json"
_DEFAULT_QUEUES = 16
_FORBIDDEN_CONFIG = ("delayOffset.json", "delayOffset.json.bak")


def config_problems(
    root: StoreRoot,
    topics: Mapping[str, TopicUse],
    settings: ConversionSettings,
    *,
    are_all: bool = True,
) -> Iterator[Problem]:
    """What is wrong beside the messages; ``topics`` are the real topics and their use, of all
    messages or of some of them. Only a wheel's counts are kept in a file.
    """
    forbidden = [root.abort, root.checkpoint, *map(root.config_file, _FORBIDDEN_CONFIG)]
    for path in forbidden + [path for _, path in snapshots(root)]:
        if is_present(path):
            yield Problem("files", f"{path.relative_to(root.path)} must not be there")
    yield from _broker_problems(root)
    if settings.engine == WHEEL:
        yield from metrics_problems(root, topics, are_all=are_all)
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
    """What a broker would count wrongly: too few always, too many where ``topics`` are of all."""
    content = read_small_file(root.config_file(TIMER_METRICS_NAME))
    if content is None:
        yield Problem(TIMER_METRICS_NAME, "not there: a broker would count below zero")
        return
    try:
        metrics = decode_timer_metrics(content)
    except FormatError as error:
        yield Problem(TIMER_METRICS_NAME, str(error))
        return
    counted = {topic: known.count for topic, known in metrics.topics.items() if known.count}
    found = {topic: use.count for topic, use in topics.items()}
    for topic in sorted(counted.keys() | found.keys()):
        right, said = found.get(topic, 0), counted.get(topic, 0)
        if said < right or (are_all and said > right):
            yield Problem(
                TIMER_METRICS_NAME, f"{topic!r}: {said} and should be {right}", abs(said - right)
            )


def _topic_problems(root: StoreRoot, topics: Mapping[str, TopicUse]) -> Iterator[Problem]:
    table = _topic_table(root)
    for topic, use in sorted(topics.items()):
        entry = table.get(topic)
        if not isinstance(entry, dict) or entry.get("topicName") != topic:
            yield Problem(TOPICS_NAME, f"{topic!r} is not there: it has no route", use.count)
            continue
        for name in ("readQueueNums", "writeQueueNums"):
            queues = entry.get(name, _DEFAULT_QUEUES)
            if not isinstance(queues, int) or queues <= use.max_queue_id:
                what = f"{topic!r}: {name} is {queues}, queue {use.max_queue_id} is used"
                yield Problem(TOPICS_NAME, what)


def _topic_table(root: StoreRoot) -> dict[Any, Any]:
    content = read_small_file(root.config_file(TOPICS_NAME))
    try:
        whole = parse(content or b"{}")
    except FormatError:
        return {}
    table = whole.get("topicConfigTable") if isinstance(whole, dict) else None
    return table if isinstance(table, dict) else {}


def overdue_problems(overdue: NDArray[np.int64]) -> Iterator[Problem]:
    """Overdue messages come in the order of their times: a later slot holds no earlier one."""
    oldest_first = overdue[::-1]
    used = oldest_first[oldest_first[:, OVERDUE_EARLIEST] <= oldest_first[:, OVERDUE_LATEST]]
    swapped = used[1:, OVERDUE_EARLIEST] < used[:-1, OVERDUE_LATEST]
    if swapped.any():
        yield Problem("timer wheel", "overdue messages are out of order", int(swapped.sum()))
