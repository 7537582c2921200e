# SPDX-License-Identifier: Apache-2.0
"""Finds the first message that engines treated differently, and tells all that befell it."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from compare.report.measure import Account
from compare.report.results import FirstDifference, MessageTimes
from compare.running.observation import NOT_TAKEN, Observation
from compare.workloads.workload import Workload
from message_store.columns.byte_column import Int64s

OTHER_TIMES = "other times"
_Columns = list[Account]
_Rows = NDArray[np.bool_]


def _differ(columns: list[Int64s]) -> _Rows:
    return np.asarray(np.any([column != columns[0] for column in columns[1:]], axis=0))


def _some_only(known: _Columns) -> _Rows:
    everywhere = np.all([each.taken for each in known], axis=0)
    return np.asarray(everywhere & np.any([each.count == 0 for each in known], axis=0))


def _repeated(known: _Columns) -> _Rows:
    return np.asarray(np.any([each.repeats > 0 for each in known], axis=0))


def _early(known: _Columns) -> _Rows:
    return np.asarray(np.any([each.was_early for each in known], axis=0))


def _other_times(known: _Columns) -> _Rows:
    came = np.all([each.count > 0 for each in known], axis=0)
    return np.asarray(came & _differ([each.first_stored_ms for each in known]))


def _taken_by_some(known: _Columns) -> _Rows:
    return _differ([each.taken.astype(np.int64) for each in known])


KINDS: dict[str, Callable[[_Columns], _Rows]] = {
    "delivered by some only": _some_only,
    "repeated": _repeated,
    "early": _early,
    "taken by some only": _taken_by_some,
    OTHER_TIMES: _other_times,
}
"""The graver kind is looked for first."""


def first_difference(
    workload: Workload,
    accounts: Mapping[str, Account],
    seen: Mapping[str, Observation],
    *,
    with_times: bool = True,
) -> FirstDifference | None:
    """The first message, by arrival, with the gravest kind of difference; None where all engines
    did the same, or only one ran.

    ``with_times``: other times are a difference too, as they are where time is not left to chance.
    """
    if len(accounts) < 2:
        return None
    for kind, find in KINDS.items():
        if kind == OTHER_TIMES and not with_times:
            continue
        rows = np.flatnonzero(find(list(accounts.values())))
        if len(rows):
            number = int(rows[0])
            return FirstDifference(
                kind=kind,
                messages=len(rows),
                number=number,
                topic=workload.topics[int(workload.topic[number])],
                arrival_ms=int(workload.arrival_ms[number]),
                asked_ms=int(workload.due_ms[number]),
                engines={
                    name: _times(workload, seen[name], number, accounts[name]) for name in accounts
                },
            )
    return None


def _times(workload: Workload, seen: Observation, number: int, known: Account) -> MessageTimes:
    """By the workload's time, also where it really ran at another."""
    shift_ms = seen.start_ms - workload.start_ms
    promised_ms = int(known.promised_ms[number])
    delivered = seen.delivered
    stored_ms = [] if delivered is None else delivered.stored_ms[delivered.number == number]
    return MessageTimes(
        None if promised_ms == NOT_TAKEN else promised_ms - shift_ms,
        tuple(int(time_ms) - shift_ms for time_ms in stored_ms),
    )
