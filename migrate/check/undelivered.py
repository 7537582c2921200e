# SPDX-License-Identifier: Apache-2.0
"""What the engines of delaywheel passed over when it was due, as their own notes in the store say.

Nothing else tells of such a message: it does not wait any more, and is in no topic.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from legacy_levels.engine.state import SkippedMessages
from message_store.base.printable import counted
from message_store.files.notes import NoteFile
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error
from migrate.check.snapshot import Picture
from timer_wheel.timers.lost_messages import LostMessages

UNDELIVERED = error(
    "undelivered",
    "an engine of delaywheel passed over it when it was due, and nothing delivers it any more",
    "look at the record; schedule its message again if it is still wanted. Then close the store,"
    " and remove the file in delaywheel/ that notes it",
)
RULES = (UNDELIVERED,)

_MOST_NAMED = 20


def check_undelivered(picture: Picture) -> Iterator[Finding]:
    """The messages that the notes of levels and wheels name."""
    skipped, lost = SkippedMessages(picture.root.path), LostMessages(picture.root)
    of_levels = [
        (f"level {one.level}, queue offset {one.queue_offset}", one.reason) for one in skipped.all()
    ]
    of_wheels = [(f"commit log {one.commit_log_offset}", one.reason) for one in lost.all()]
    yield from _findings(picture, skipped, of_levels)
    yield from _findings(picture, lost, of_wheels)


def _findings(
    picture: Picture, notes: NoteFile[Any], named: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """So many messages of one file by name, and how many more there are."""
    file = picture.place(notes.path)
    if notes.is_damaged:
        yield UNDELIVERED.at(file, "the file is damaged: which messages it named is not known")
    for where, reason in named[:_MOST_NAMED]:
        yield UNDELIVERED.at(where, f"a message could not be delivered: {reason}")
    if len(named) > _MOST_NAMED:
        more = counted(len(named) - _MOST_NAMED, "more message")
        yield UNDELIVERED.at(file, f"{more} could not be delivered")
