# SPDX-License-Identifier: Apache-2.0
"""What makes a conversion this one and not another: all that a continued run must agree on."""

from typing import Any

import attrs

from message_store.files.store_root import StoreRoot
from message_store.format.delay_levels import DelayLevels
from migrate.plan.plan import Amendments
from migrate.report.conversion_marker import log_fingerprint
from migrate.settings import ConvertOptions
from migrate.write.staging import Staging


def request_of(options: ConvertOptions, now_ms: int, table: DelayLevels) -> dict[str, Any]:
    """Options, time, level table, the source's log files; how many cores there are is no part."""
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
        "part_bytes": options.part_bytes,
        "to": options.to,
        "source": str(options.source.absolute()),
        "source_log": log_fingerprint(StoreRoot(options.source)),
    }


def mismatch(staging: Staging, request: dict[str, Any], facts: dict[str, Any]) -> str:
    """The sentence for a target that was begun from something else, and in what it differs."""
    before = facts.get("request", {})
    changed = [name for name, value in request.items() if before.get(name) != value]
    what = ", ".join(changed) or "the level queues"
    return (
        f"{staging.target.path}: was begun from something else (differs in: {what});"
        f" repeat the first command, or empty {staging.target.path} and begin anew"
    )


def known_amendments(facts: dict[str, Any], first: Amendments) -> Amendments:
    """What the unfinished run had learned, so that continuing it makes the same plan."""
    known = facts.get("amendments", {})
    return Amendments(
        bad={**first.bad, **{int(at): why for at, why in known.get("bad", {}).items()}},
        sizes={int(at): size for at, size in known.get("sizes", {}).items()},
    )
