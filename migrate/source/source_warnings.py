# SPDX-License-Identifier: Apache-2.0
"""What is odd about a source's files, before anything is read from them: it is said aloud."""

from legacy_levels.backlog.cut_queues import cut_queues_of
from legacy_levels.backlog.gone_queues import gone_queues
from message_store.files.store_root import StoreRoot
from message_store.writing.cut_log import cut_log, way_out
from migrate.look.files import row_problems

_TAKEN_FROM_LOG = (
    "their messages are taken from the log as far as it has them, also those that were cancelled"
)
_MAY_BE_IN_LOG = "what such a queue has lost may still be in the log"


def source_warnings(source: StoreRoot, *, whole_log: bool, is_in_place: bool = False) -> list[str]:
    """Files of a wrong length or missing, and queues that are gone, as sentences; and what finds
    the messages they held.
    """
    cut = [f"{one}; {_TAKEN_FROM_LOG}" for one in cut_queues_of(source)]
    said = [*row_problems(source), *map(str, gone_queues(source))]
    if not any(str(source.consume_queues) in sentence for sentence in said) or whole_log:
        return [*cut, *said]
    finds = "convert into a fresh store with --whole-log instead"
    return [*cut, *said, f"{_MAY_BE_IN_LOG}: {finds if is_in_place else '--whole-log looks there'}"]


def loss_warnings(store: StoreRoot) -> list[str]:
    """What the log and the level queues have lost, as sentences, for those who only look."""
    lost = cut_log(store)
    return [
        *([f"{lost}; {way_out(store)}"] if lost else []),
        *(f"{cut}; {_TAKEN_FROM_LOG}" for cut in cut_queues_of(store)),
        *gone_queue_warnings(store),
    ]


def gone_queue_warnings(store: StoreRoot) -> list[str]:
    """Level queues that are gone, as sentences."""
    said = [str(gone) for gone in gone_queues(store)]
    finds = f"{_MAY_BE_IN_LOG}: `delaywheel convert --whole-log` looks there"
    return [*said, finds] if said else []
