# SPDX-License-Identifier: Apache-2.0
"""A store whose timers are on a hierarchical wheel: no broker's, and kept from brokers."""

from collections.abc import Iterator

from message_store.base.printable import counted
from message_store.interface.delay_store import Finding
from message_store.interface.finding_rules import error, info, warning
from migrate.check.snapshot import Picture
from timer_wheel.hierarchy.taken_over import damage_of_taken_over
from timer_wheel.reading.ownership import is_guarded

UNGUARDED = error(
    "hierarchy-unguarded",
    "a broker starts, knows nothing of the hierarchical wheel, and goes by what the queue and its"
    " own wheel say: messages are repeated or lost",
    "before a broker starts, open the store with WheelStore, which makes its wheel, and close it",
)
TAKEN_OVER_DAMAGED = warning(
    "taken-over-damaged",
    "no broker looks at it; an index of the hierarchical wheel that is lost cannot be made again,"
    " and some old cancels are reported as delivered",
    "open the store with WheelStore, close it, and open it with HierarchicalWheelStore again: the"
    " file is written anew",
)
HIERARCHICAL = info(
    "hierarchical-wheel",
    "no broker starts on it: where its wheel would be stands a sentence",
    "open it with HierarchicalWheelStore; to give it to a broker, open it with WheelStore first",
)

RULES = (UNGUARDED, TAKEN_OVER_DAMAGED, HIERARCHICAL)


def check_hierarchy(picture: Picture) -> Iterator[Finding]:
    """Whose the store is, and that brokers stay away from it."""
    state = picture.wheel
    if state is None or not picture.is_hierarchical:
        return
    where = "delaywheel/hierarchy"
    if not is_guarded(picture.root):
        told = "nothing keeps a broker from starting on this store"
        yield UNGUARDED.at(where, told)
    damage = damage_of_taken_over(picture.root)
    if damage is not None:
        yield TAKEN_OVER_DAMAGED.at(f"{where}/taken-over", damage)
    waiting = counted(len(state.pending), "message waits", "messages wait")
    yield HIERARCHICAL.at(where, f"{waiting} there")
