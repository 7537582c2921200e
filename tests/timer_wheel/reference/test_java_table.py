# SPDX-License-Identifier: Apache-2.0
"""The table of the wheel in docs/JAVA.md names functions that exist."""

import re
from importlib import import_module
from operator import attrgetter

import pytest

from tests.source_laws import ROOT

TEXT = (ROOT / "docs" / "JAVA.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in TEXT.partition("## Wheel")[2].partition("\n## ")[0].split("\n")
    if line.startswith("| Timer") or line.startswith("| Mapped")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_both_functions_of_a_row_are_there(row: list[str]) -> None:
    _, _, *functions = row
    assert len(functions) == 2
    for name in functions:
        if name == "–":
            continue
        module, _, path = re.sub(r"\.([A-Z].*|[a-z_]+)$", r" \1", name).partition(" ")
        assert attrgetter(path)(import_module(module))


def test_the_table_has_the_five_services() -> None:
    services = ("EnqueueGet", "EnqueuePut", "DequeueGet", "DequeueGetMessage", "DequeuePutMessage")
    assert {f"Timer{name}Service" for name in services} <= {row[0] for row in ROWS}
    assert len(ROWS) > 35
