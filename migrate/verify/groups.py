# SPDX-License-Identifier: Apache-2.0
"""Who reads the messages of a target: its subscriptionGroup.json and consumerOffset.json, held
against the source's.

A group that the source knows must be there, and begin at 0 in every queue of a topic that it had
read: in this store nothing was delivered before. One without an offset may begin at the end, and
one with a larger offset passes over what comes first.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from message_store.base.errors import FormatError
from message_store.files.small_files import read_small_file
from message_store.files.store_root import StoreRoot
from message_store.format.broker_json import parse
from migrate.verify.digests import TopicUse
from migrate.verify.report import Problem

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
