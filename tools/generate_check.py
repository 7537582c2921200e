# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/CHECK.md from the findings that there are. Run by ``make docs``."""

import re
from pathlib import Path

from message_store.interface.delay_store import Severity
from migrate.check.store import RULES

CHECK_PAGE = Path(__file__).resolve().parents[1] / "docs" / "CHECK.md"
_MARKED = re.compile(r"(<!-- generated: findings -->\n).*?(<!-- end -->)", re.DOTALL)
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def findings_table() -> str:
    """Every kind of finding, the worst first, as a table."""
    rows = ["| code | severity | what happens | what to do |", "|---|---|---|---|"]
    for rule in sorted(RULES, key=lambda rule: _ORDER.index(rule.severity)):
        effect, remedy = (text.replace("|", "\\|") for text in (rule.effect, rule.remedy))
        rows.append(f"| `{rule.code}` | {rule.severity.value} | {effect} | {remedy} |")
    return "\n".join(rows)


def generated(page: str) -> str:
    """The page with its table as it should be."""
    return _MARKED.sub(lambda found: f"{found[1]}{findings_table()}\n{found[2]}", page)


if __name__ == "__main__":
    CHECK_PAGE.write_text(generated(CHECK_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
