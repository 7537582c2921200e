# SPDX-License-Identifier: Apache-2.0
"""The lines of the journal of consumer groups, and what they say of each queue.

``delaywheel/consumers`` has these lines (docs/FORMAT.md), ``N`` being the number of a queue:

- ``Q N queue_id group topic`` gives the number.
- ``B N offset``: consumerOffset.json has this offset, and the group begins there.
- ``J N offset``: consumerOffset.json may have this offset as well.
- ``E N offset``: consumerOffset.json has got an entry by us, with this offset. Where it has none,
  somebody removed it.
- ``S N offset``: the group begins at this offset.
- ``A N queue_offset identity``: this message was acknowledged.
- ``A N queue_offset identity first``: so were all before it, from the queue offset ``first`` on.
- ``R N queue_offset identity times topic log_end``: the next step stores a record for this retry or
  dead letter topic. It has this number of retries, and lies at this place of the log or behind it.
  That acknowledges the message. The line ``A`` follows when the log is on disk.
- ``L queue_id end topic``: this queue has lost its end, whatever was noted before. No group is
  behind it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs


class QueueKey(NamedTuple):
    """One queue of a topic as one group sees it.

    A tuple, because it is looked up for each message: a frozen attrs class hashes six times as
    long.
    """

    group: str
    topic: str
    queue_id: int


class Acked(NamedTuple):
    """Messages one behind another that were acknowledged together: the first one's queue offset,
    and the last one's identity.
    """

    first: int
    identity: int


@attrs.frozen
class GivenBack:
    """A record that was about to be stored for a message that a group gave back, at ``log_end`` of
    the commit log or behind it.
    """

    identity: int
    reconsume_times: int
    topic: str
    log_end: int


@attrs.define
class Progress:
    """What is known of a group's progress in a queue; ``acked`` are acknowledgements by the last
    queue offset of each, ``saved`` the offsets that consumerOffset.json may have by us, ``begun``
    messages that may have been given back. ``has_entry`` says that consumerOffset.json got an entry
    by us.
    """

    start: int
    acked: dict[int, Acked]
    saved: set[int] = attrs.field(factory=set)
    begun: dict[int, GivenBack] = attrs.field(factory=dict)
    has_entry: bool = False

    def is_saved_beside(self, offsets: set[int]) -> None:
        """consumerOffset.json has one of these, or gets where the group begins: that is one now."""
        offsets.add(self.start)
        self.saved = offsets

    def lower(self, end: int) -> None:
        """The queue ends there, and what comes there is new."""
        self.start = min(self.start, end)
        self.acked = {last: each for last, each in self.acked.items() if last < end}
        self.begun = {at: each for at, each in self.begun.items() if at < end}


def lost_end_line(topic: str, queue_id: int, end: int) -> str:
    """This queue has lost its end."""
    return f"L {queue_id} {end} {topic}"


def number_line(number: int, key: QueueKey) -> str:
    """A queue gets its number."""
    return f"Q {number} {key.queue_id} {key.group} {key.topic}"


def start_line(number: int, offset: int, *, is_saved: bool = False) -> str:
    """The group begins there; consumerOffset.json says so where it ``is_saved``."""
    return f"{'B' if is_saved else 'S'} {number} {offset}"


def saved_line(number: int, offset: int) -> str:
    """consumerOffset.json may have this offset as well."""
    return f"J {number} {offset}"


def entry_line(number: int, offset: int) -> str:
    """consumerOffset.json has got an entry, with this offset."""
    return f"E {number} {offset}"


def ack_line(number: int, last: int, first: int, identity: int) -> str:
    """These messages were acknowledged."""
    line = f"A {number} {last} {identity}"
    return line if first == last else f"{line} {first}"


def ack_lines(number: int, acked: Mapping[int, Acked]) -> list[str]:
    """The same of all acknowledgements of a queue."""
    return [ack_line(number, last, *acked[last]) for last in sorted(acked)]


def begun_line(number: int, queue_offset: int, record: GivenBack) -> str:
    """This record will be stored now."""
    place = f"R {number} {queue_offset} {record.identity} {record.reconsume_times}"
    return f"{place} {record.topic} {record.log_end}"


def parse_journal(lines: Iterable[str]) -> dict[QueueKey, Progress]:
    """What the journal says of each queue; a line that makes no sense ends it."""
    keys: dict[str, QueueKey] = {}
    noted: dict[QueueKey, Progress] = {}
    try:
        for line in lines:
            kind, number, *fields = line.split(" ")
            if kind == "L":
                end, topic = fields
                for key, progress in noted.items():
                    if (key.topic, key.queue_id) == (topic, int(number)):
                        progress.lower(int(end))
                continue
            if kind == "Q":
                queue_id, group, topic = fields
                keys[number] = QueueKey(group, topic, int(queue_id))
                noted[keys[number]] = Progress(0, {})
                continue
            progress, value = noted[keys[number]], int(fields[0])
            if kind in "BS":
                progress.start = value
                progress.acked, progress.begun = {}, {}
            if kind == "B":
                progress.saved = {value}
            if kind == "E":
                progress.has_entry = True
            if kind == "J":
                progress.saved.add(value)
            if kind == "A":
                first = int(fields[2]) if len(fields) > 2 else value
                progress.acked[value] = Acked(first, int(fields[1]))
                for at in [at for at in progress.begun if first <= at <= value]:
                    del progress.begun[at]
            if kind == "R":
                identity, times, topic, end = fields[1:]
                progress.begun[value] = GivenBack(int(identity), int(times), topic, int(end))
    except (KeyError, ValueError, IndexError):
        pass
    return noted
