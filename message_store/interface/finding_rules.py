# SPDX-License-Identifier: Apache-2.0
"""The kinds of findings: each has a stable code, a severity, an effect and a remedy."""

from collections.abc import Iterable
from functools import partial

import attrs

from message_store.interface.delay_store import Finding, Severity

_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


found_error = partial(Finding, Severity.ERROR)
"""Messages are lost or repeated, or a broker does not start."""
found_warning = partial(Finding, Severity.WARNING)
"""It will hurt later, or may."""
found_info = partial(Finding, Severity.INFO)
"""It is worth knowing."""


@attrs.frozen
class FindingRule:
    """One kind of finding. ``effect`` and ``remedy`` hold for every finding of it."""

    code: str
    severity: Severity
    effect: str
    remedy: str

    def at(self, where: object, problem: str, *, more: str = "") -> Finding:
        """A finding of this kind; ``more`` is added to what a broker does."""
        effect = f"{self.effect}; {more}" if more else self.effect
        return Finding(self.severity, str(where), problem, effect, self.remedy, self.code)


def error(code: str, effect: str, remedy: str) -> FindingRule:
    """A kind of finding by which messages are lost or repeated, or a broker does not start."""
    return FindingRule(code, Severity.ERROR, effect, remedy)


def warning(code: str, effect: str, remedy: str) -> FindingRule:
    """A kind of finding that will hurt later, or may."""
    return FindingRule(code, Severity.WARNING, effect, remedy)


def info(code: str, effect: str, remedy: str) -> FindingRule:
    """A kind of finding that is worth knowing."""
    return FindingRule(code, Severity.INFO, effect, remedy)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity, those of one severity in the order in which they came."""
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))
