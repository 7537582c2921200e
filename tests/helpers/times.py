# SPDX-License-Identifier: Apache-2.0
"""Where the time of a run goes: `python -m tests.helpers.times STAGES REPORT.xml...`.

STAGES has a line `name seconds` for each stage, the reports are pytest's. Prints the slowest tests
and writes them to tests/TIMES.md, so that growth is seen in a diff.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "TIMES.md"
SLOWEST = 30


def cases(report: Path) -> Iterator[tuple[float, str, str]]:
    """Seconds, tier and name of each test of a report that is called after its tier."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        yield float(case.get("time", "0")), report.stem, name.replace("|", "\\|")


def page(stages: Sequence[str], reports: Sequence[Path]) -> str:
    """The whole page, in Markdown."""
    tests = [each for report in reports for each in cases(report)]
    rows = [line.split() for line in stages if line.strip()]
    lines = [
        "# Where the time of a run goes",
        "",
        "Written by `.ci/run`. Seconds differ from machine to machine, their order less.",
        "",
        "| stage | seconds | tests |",
        "|---|---:|---:|",
        *(
            f"| {name} | {seconds} | {sum(tier == name for _, tier, _ in tests) or '–'} |"
            for name, seconds in rows
        ),
        f"| in all | {sum(int(seconds) for _, seconds in rows)} | {len(tests)} |",
        "",
        "| seconds | tier | test, with its set-up |",
        "|---:|---|---|",
        *(f"| {s:.1f} | {tier} | {name} |" for s, tier, name in sorted(tests)[: -SLOWEST - 1 : -1]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = page(
        Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), [*map(Path, sys.argv[2:])]
    )
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
