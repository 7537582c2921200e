# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with a file, a migration says so or does what it says: only the project's own
errors are raised, the books add up, ``verify`` finds what a conversion has left, and never passes
a target of which the engine would deliver anything else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harm_rounds import harm_rounds
from tests.migrate.damaged_worker import PRISTINE, SHAPES, Outcome, Round, build, copy_with_times

SLOW = pytest.mark.nightly

QUICK = ("a wheel",)
"""One that is itself a conversion."""
CASES = [
    *(pytest.param(shape, "lies", range(1), id=f"{shape}: a lie") for shape in QUICK),
    *(
        pytest.param(shape, kind, range(1_000, 1_010), id=f"{shape}: 10 {kind}", marks=SLOW)
        for shape in SHAPES
        for kind in ("damages", "lies")
    ),
]


@pytest.mark.parametrize(("shape", "kind", "seeds"), CASES)
def test_a_damaged_file_is_told_or_does_no_harm(
    tmp_path: Path, shape: str, kind: str, seeds: range
) -> None:
    pristine = tmp_path / PRISTINE
    build(SHAPES[shape], pristine)
    copy_with_times(pristine, tmp_path / "right")
    right = Round(SHAPES[shape], tmp_path / "right").run()
    assert (right.wrong, right.crashes) == ([], [])
    rounds = harm_rounds(kind, shape, pristine, seeds, module="tests.migrate.damaged_worker")
    for seed, damage, came in rounds:
        harm, outcome = (seed, damage), Outcome(**came)
        assert (outcome.wrong, outcome.crashes) == ([], []), harm
        told = outcome.told
        for delivered in (told[name]["bodies"] for name in told if name.startswith("convert")):
            assert max(delivered.values(), default=0) <= 1, harm
        if "retire" in told:
            assert told["retire"] == right.told["retire"], harm
        if told.get("verify"):
            assert told.get("drain") == right.told["drain"], (harm, outcome.refused)
