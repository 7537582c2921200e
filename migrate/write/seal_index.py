# SPDX-License-Identifier: Apache-2.0
"""Sealing a target for a hierarchical wheel: its index made of all parts' tables, its mark of
ownership, and what keeps a broker from starting on it.
"""

from migrate.plan.plan import Plan
from migrate.write.index_part import tables_of
from migrate.write.staging import Staging, clear
from timer_wheel.format.hierarchy_due import TO_THE_MILLISECOND
from timer_wheel.format.index_layouts import IndexState
from timer_wheel.hierarchy.index_bulk import make_index
from timer_wheel.reading.ownership import Active, claim, guard, home, index_path


def seal_index(plan: Plan, staging: Staging) -> None:
    """Make the index in the staging place, anew where an earlier try was stopped.

    Out times mean slots of the plan's precision; what is scheduled later is kept to the
    millisecond. Raises TargetError.
    """
    store, precision_ms = staging.store, plan.settings.precision_ms
    clear(home(store))
    state = IndexState(
        precision_ms=TO_THE_MILLISECOND,
        slot_precision_ms=precision_ms,
        placed_end=len(plan),
        log_end=plan.log.end_offset,
        hand_ms=0,
        minute_hand_ms=0,
        hour_hand_ms=0,
        ids_end=len(plan),
    )
    make_index(index_path(store), tables_of(staging, len(plan.log.parts)), state)
    claim(store, Active(TO_THE_MILLISECOND, precision_ms))
    guard(store)
