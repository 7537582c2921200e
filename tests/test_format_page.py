# SPDX-License-Identifier: Apache-2.0
"""docs/FORMAT.md says what the code says, and has every chapter that the code refers to."""

import re
from importlib import import_module

import pytest

from message_store.format.layout import Layout
from tests.message_store.vectors import LEVEL_OPEN
from tests.source_laws import ROOT, product_sources
from tools.generate_format import EXAMPLE, FORMAT_PAGE, PARTS, format_markdown

PAGE = FORMAT_PAGE.read_text("utf-8")
CITED = re.compile(r"docs/FORMAT\.md,\s+(?:#\s+)?([a-z][a-z ]+?)[.);:,\"]")


def test_the_generated_parts_are_up_to_date() -> None:
    assert format_markdown(PAGE) == PAGE, "run `make docs`"


def test_every_part_is_on_the_page_once() -> None:
    marks = re.findall(r"<!-- generated: (.+?) -->", PAGE)
    assert sorted(marks) == sorted(PARTS)
    assert PAGE.count("<!-- end -->") == len(PARTS)


def test_a_stale_page_is_noticed() -> None:
    stale = PAGE.replace("| 12 | i32 | `queue_id`", "| 16 | i32 | `queue_id`")
    assert stale != PAGE
    assert format_markdown(stale) == PAGE


def test_a_mark_without_a_part_is_refused() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        format_markdown("<!-- generated: nonsense -->\n<!-- end -->")


def test_every_field_of_every_layout_of_a_store_is_on_the_page() -> None:
    missing = []
    for source in product_sources():
        if source.part in ("message_store", "legacy_levels", "time_index", "timer_wheel") and (
            "Layout(" in source.text
        ):
            module = import_module(source.path.removesuffix(".py").replace("/", "."))
            for layout in vars(module).values():
                if isinstance(layout, Layout):
                    missing += [f.name for f in layout.fields if f"`{f.name}`" not in PAGE]
    assert missing == []


def test_every_chapter_that_the_code_refers_to_is_there() -> None:
    headings = [line.lstrip("# ").lower() for line in PAGE.splitlines() if line.startswith("#")]
    cited = {name for source in product_sources() for name in CITED.findall(source.text)}
    assert len(cited) >= 5
    assert {name for name in cited if not any(h.startswith(name) for h in headings)} == set()


def test_the_example_is_a_record_that_rocketmq_has_read() -> None:
    assert EXAMPLE == LEVEL_OPEN


def test_other_pages_link_to_it() -> None:
    assert "FORMAT.md" in (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
