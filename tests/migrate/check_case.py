# SPDX-License-Identifier: Apache-2.0
"""A store with one thing wrong, and the finding that it must lead to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from migrate.check.snapshot import CheckOptions
from migrate.check.store import CheckReport, check_store
from tests.independent.level_store_builder import T0

NOW_MS = T0 + 20_000


@attrs.frozen(kw_only=True)
class Case:
    """``make`` builds the store in a directory that is not there yet; ``says`` is in the problem.

    The options are those of ``CheckOptions``.
    """

    code: str
    make: Callable[[Path], object]
    says: str = ""
    options: dict[str, Any] = attrs.field(factory=dict)


def look(root: Path, **options: Any) -> CheckReport:
    return check_store(root, CheckOptions(**({"now_ms": NOW_MS, "disk_used": 0.5} | options)))


def codes(report: CheckReport) -> list[str]:
    return [finding.code for finding in report.findings]
