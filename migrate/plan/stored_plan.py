# SPDX-License-Identifier: Apache-2.0
"""The plan as executors read it: a small JSON file, and arrays that are read by slice.

It also says what a continued run must have in common with the run that it continues.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from message_store.base.errors import PlanError
from message_store.base.parallel import parallel_map
from message_store.files.small_files import read_small_file, replace_file
from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.plan.plan import Corrections, Cut, Plan
from migrate.report.marker import log_fingerprint
from migrate.settings import ConvertOptions, TargetSettings
from migrate.write.rewriter import RecordRewriter
from migrate.write.staging import Staging, load_array, save_array, target_errors

PLAN_FORMAT = 3
"""Of what lies in a staging directory: another one is not continued."""
_ARRAYS = "source_offsets", "source_sizes", "levels", "outs_ms"


@attrs.frozen(eq=False)
class StoredPlan:
    """A plan in its staging directory; arrays are mapped, an element a message: take slices."""

    staging: Staging
    identity: str
    sources: tuple[Path, ...]
    now_ms: int
    cut: Cut
    settings: TargetSettings
    engine: str
    arrays: dict[str, NDArray[Any]]

    def rewriter(self, first: int, end: int) -> RecordRewriter:
        """What rewrites these messages; columns are copied, as kernels want them."""
        rows = slice(first, end)
        columns = {name: np.array(array[rows]) for name, array in self.arrays.items()}
        return RecordRewriter(**columns, now_ms=self.now_ms, settings=self.settings)


def store_plan(
    plan: Plan,
    staging: Staging,
    *,
    sources: Sequence[Path],
    request: dict[str, Any],
    corrections: Corrections,
) -> None:
    """Write the plan for the executors, and the directory of what they write.

    ``plan.json`` comes last and is synced: a run cannot be continued from a torn one. A run that
    is continued stores its plan once more, since a power loss can zero it. Raises TargetError.
    """
    arrays = {name: getattr(plan, name) for name in _ARRAYS}
    for directory in (staging.attempts, staging.plan_arrays):
        with target_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def save(name: str) -> None:
        save_array(staging.plan_array(name), arrays[name])

    parallel_map(save, arrays)
    facts = {
        "format": PLAN_FORMAT,
        "identity": plan.identity,
        "sources": [str(source.absolute()) for source in sources],
        "request": request,
        "amendments": attrs.asdict(corrections),
        "now_ms": plan.now_ms,
        "cut": attrs.asdict(plan.cut),
        "settings": attrs.asdict(plan.settings),
        "engine": plan.engine,
    }
    replace_file(staging.plan_file, json.dumps(facts, indent=1).encode())


def read_plan_facts(staging: Staging) -> dict[str, Any] | None:
    """The contents of ``plan.json``; None if no plan was finished. Raises PlanError."""
    content = read_small_file(staging.plan_file)
    if content is None:
        return None
    try:
        facts: dict[str, Any] = json.loads(content)
        facts["identity"], facts["now_ms"]
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"{staging.plan_file}: not a plan; empty {staging.target.path} and begin anew"
        ) from error
    return facts


def load_plan(target: Path, identity: str | None = None) -> StoredPlan:
    """The plan of an unfinished conversion: the one with this identity, if one is given.

    Raises PlanError or TargetError when there is none, or another one by now.
    """
    staging = Staging(StoreRoot(target))
    facts = read_plan_facts(staging)
    if facts is None:
        raise PlanError(f"{staging.plan_file}: no plan")
    if identity not in (None, facts["identity"]):
        raise PlanError(f"{staging.plan_file}: another plan has taken the place of this task's")
    staging = Staging(staging.target, facts["identity"])
    return StoredPlan(
        staging=staging,
        identity=facts["identity"],
        sources=tuple(map(Path, facts["sources"])),
        now_ms=facts["now_ms"],
        cut=Cut(**facts["cut"]),
        settings=TargetSettings(**facts["settings"]),
        engine=facts["engine"],
        arrays={name: load_array(staging.plan_array(name)) for name in _ARRAYS},
    )


def request_of(options: ConvertOptions, now_ms: int, table: DelayLevels) -> dict[str, Any]:
    """Options, time, level table and the source's log files; the number of cores is no part."""
    return {
        "now_ms": now_ms,
        "settings": attrs.asdict(options.settings),
        "level_table": table.text(),
        "on_bad_record": options.on_bad_record,
        "after_crash": options.after_crash,
        "offsets": options.offsets,
        "only_levels": list(options.only_levels),
        "only_topics": list(options.only_topics),
        "levels_only": options.levels_only,
        "whole_log": options.whole_log,
        "to": options.to,
        "source": str(options.source.absolute()),
        "source_log": log_fingerprint(StoreRoot(options.source)),
    }


def is_of(facts: dict[str, Any], plan: Plan) -> bool:
    """Whether a stored plan is this one, in the form of today."""
    return (facts["identity"], facts.get("format")) == (plan.identity, PLAN_FORMAT)


def mismatch(staging: Staging, request: dict[str, Any], facts: dict[str, Any]) -> str:
    """The message for a target that was begun from something else, with the differences."""
    if facts.get("format") != PLAN_FORMAT:
        return (
            f"{staging.target.path}: was begun by another version; empty {staging.target.path} and"
            " begin anew"
        )
    before = facts.get("request", {})
    changed = [name for name, value in request.items() if before.get(name) != value]
    what = ", ".join(changed) or "the level queues"
    return (
        f"{staging.target.path}: was begun from something else (differs in: {what});"
        f" repeat the first command, or empty {staging.target.path} and begin anew"
    )


def stored_corrections(facts: dict[str, Any], first: Corrections) -> Corrections:
    """The corrections of the unfinished run, so that continuing it makes the same plan."""
    stored = facts.get("amendments", {})
    return Corrections({**first.bad, **{int(at): why for at, why in stored.get("bad", {}).items()}})
