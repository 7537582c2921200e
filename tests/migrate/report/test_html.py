# SPDX-License-Identifier: Apache-2.0
"""The HTML report: true numbers, everything escaped, nothing fetched from anywhere."""

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import numpy as np
import pytest

from message_store.base.errors import TargetError
from message_store.files.store_root import StoreRoot
from migrate.report.html import (
    Forecast,
    Panel,
    draw_forecast,
    draw_panels,
    read_forecast,
    render_html_report,
    require_report_place,
    write_html_report,
)
from migrate.report.report import (
    BUCKETS_MAX,
    BadRecord,
    ConversionReport,
    DueTimes,
    LevelReport,
    Seconds,
)
from tests.html_pages import (
    EVIL,
    browser,
    require_harmless,
    require_whole_in_itself,
    seen_in_a_browser,
)
from tests.independent.tiny_target import MESSAGES, WRITE_TIME_MS, write_tiny_target

LEVEL = LevelReport(
    level=5,
    delay_ms=60_000,
    from_offset=7,
    to_offset=1_241,
    queued=1_234,
    already_delivered=0,
    expired=0,
    pending=1_234,
    converted=1_233,
    skipped=0,
    quarantined=1,
    overdue=12,
    rolled=0,
)
FORECAST = Forecast(
    precision_ms=1000,
    due_ms=np.array([1_700_000_000_000, 1_700_000_060_000, 1_700_007_200_000]),
    messages=np.array([1, 30, 2]),
)


def a_report(**changes: object) -> ConversionReport:
    report = ConversionReport(
        source=EVIL,
        target="/data/target",
        now_ms=1_700_000_000_000,
        precision_ms=1000,
        level_table="1s 5s",
        offsets_source="main",
        levels=(LEVEL,),
        due_min_ms=1_700_000_000_000,
        due_max_ms=1_700_007_200_000,
        open_before_ms=1_700_600_000_000,
        bytes_read=12,
        bytes_written=34,
        bad_records=(BadRecord(5, 99, 4711, f"REAL_TOPIC {EVIL}"),),
        broker_conf={"timerPrecisionMs": "1000"},
        warnings=(EVIL,),
        seconds=Seconds(1, 2, 3, 4, 10),
        request={},
        identity="",
    )
    return attrs.evolve(report, **changes)  # type: ignore[arg-type]


def test_a_store_whose_name_is_not_utf8_has_a_page(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "target")
    report = a_report(source="od\udcff", target=str(tmp_path / "target"))
    write_html_report(report, tmp_path / "page.html")
    assert r"od\udcff" in (tmp_path / "page.html").read_text()


def test_no_page_is_put_into_a_store(tmp_path: Path) -> None:
    """Neither into one that is read nor into one that is yet to be made."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "config").mkdir(parents=True)
    (tmp_path / "link").symlink_to(source)
    require_report_place(tmp_path / "page.html", source, target)
    places = source / "config" / "delayOffset.json", tmp_path / "link" / "page.html"
    for place in (*places, target, target / "timerwheel"):
        with pytest.raises(TargetError, match=r"lies in the store .*; choose a place outside"):
            require_report_place(place, source, target)


def test_a_page_takes_the_place_of_a_page_alone(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!DOCTYPE html>\n")
    (tmp_path / "empty.html").touch()
    (tmp_path / "link.html").symlink_to("page.html")
    for name in ("page.html", "empty.html", "link.html"):
        require_report_place(tmp_path / name)
    (tmp_path / "notes.txt").write_text("buy milk")
    with pytest.raises(TargetError, match="is already there, and is no report"):
        require_report_place(tmp_path / "notes.txt")


def test_a_page_takes_the_place_of_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="pipe: cannot be written: no ordinary file"):
        require_report_place(tmp_path / "pipe")


def test_the_page_tells_the_numbers() -> None:
    page = render_html_report(a_report(), FORECAST)
    assert "1,233 of 1,234 pending messages converted" in page
    assert "level 5 (1m)" in page
    assert "2023-11-21T20:53:20Z" in page
    assert "30 messages a second" in page
    assert "timerPrecisionMs=1000\n" in page
    assert "Restarting the old broker would deliver the converted messages again" in page
    assert "<td>4711</td>" in page


def test_the_page_tells_topics_what_was_due_before_and_what_to_do() -> None:
    due_ms = np.repeat([1_700_000_000_000, 1_700_000_060_500], [3, 1230])
    topics = {f"T{number}": number for number in range(1, 203)}
    page = render_html_report(a_report(topics=topics, due=DueTimes.of(due_ms)), FORECAST)
    assert '<td class="path">T202</td><td>202</td>' in page
    assert '<td class="path">T2</td>' not in page
    assert "And 2 more, with fewer messages." in page
    assert "1,230 of them were due in one second, at 2023-11-14T22:14:20Z" in page
    assert "On the wheel they take 3 slots." in page
    assert "delaywheel quarantine /data/target" in page
    assert "retire SOURCE --converted-to /data/target --execute" in page


def test_the_page_of_a_merge_has_every_source() -> None:
    each = [a_report(source=f"/data/{name}", sources=()) for name in ("one", "two")]
    page = render_html_report(a_report(sources=tuple(each)), FORECAST)
    assert "<h2>Sources</h2>" in page
    assert "delaywheel verify /data/one /data/two /data/target" in page


@pytest.mark.parametrize("span_s", [0, 1, 250, 86_400 * 90, 86_400 * 4_000])
def test_due_times_are_counted_in_few_buckets(span_s: int) -> None:
    seconds = np.unique(np.linspace(0, span_s, 300).astype(np.int64))
    due_ms = 1_700_000_000_999 + 1000 * np.concatenate([seconds, seconds[-1:]])
    found = DueTimes.of(due_ms)
    assert found is not None
    assert sum(found.counts) == len(due_ms)
    assert len(found.counts) <= max(BUCKETS_MAX + 1, span_s // 86_400 + 1)
    assert (found.peak_messages, found.peak_ms) == (2, int(due_ms[-1]) // 1000 * 1000)
    assert found.first_s <= 1_700_000_000 < found.first_s + found.step_s
    assert DueTimes.from_json(json.loads(json.dumps(attrs.asdict(found)))) == found
    assert DueTimes.of(due_ms[:0]) is None


def test_nothing_of_a_store_becomes_markup_or_control() -> None:
    page = render_html_report(a_report(), FORECAST)
    require_harmless(page, times=5)


def test_nothing_is_fetched() -> None:
    require_whole_in_itself(render_html_report(a_report(), FORECAST))


def test_the_picture_is_the_same_each_time_and_well_formed() -> None:
    picture = draw_forecast(FORECAST)
    assert picture == draw_forecast(FORECAST)
    assert ElementTree.fromstring(picture).tag.endswith("svg")


@pytest.mark.parametrize("span_s", [1, 59, 600, 86_400, 40 * 86_400, 20_000 * 86_400])
@pytest.mark.parametrize("highest", [1, 4, 39, 1_000_000])
def test_a_picture_has_a_few_times_and_lines_and_every_bar(span_s: int, highest: int) -> None:
    starts = np.unique(np.linspace(1_700_000_000, 1_700_000_000 + span_s, 7).astype(np.int64))
    counts = np.linspace(1, highest, len(starts)).astype(np.int64)
    picture = draw_panels([Panel(name, 1, starts, counts) for name in ("one", "two")])
    elements = list(ElementTree.fromstring(picture))
    texts = [element.text or "" for element in elements if element.tag.endswith("text")]
    assert [text for text in texts if "messages in 1 s" in text] == [
        f"{name}: messages in 1 s" for name in ("one", "two")
    ]
    lines = [text for text in texts if text.replace(",", "").isdigit()]
    assert 4 <= len(lines) <= 8
    assert int(lines[-1].replace(",", "")) <= highest
    dates = [text for text in texts if text.count("-") == 2]
    assert 1 <= len(dates) <= 9
    bars = [element.get("d", "") for element in elements if element.get("fill") == "#33658a"]
    assert [path.count("M") for path in bars] == [len(starts)] * 2


def test_a_conversion_of_nothing_has_no_picture() -> None:
    empty = Forecast(1000, np.empty(0, np.int64), np.empty(0, np.int64))
    report = a_report(due_min_ms=None, due_max_ms=None, open_before_ms=None, bad_records=())
    page = render_html_report(report, empty)
    assert "Nothing waits." in page
    assert "<svg" not in page


@pytest.mark.parametrize("days", [0, 1, 40, 900])
def test_bars_are_few_and_lose_nothing(days: int) -> None:
    due_ms = np.linspace(1_700_000_000_000, 1_700_000_000_000 + days * 86_400_000, 5_000)
    forecast = Forecast(1000, due_ms.astype(np.int64), np.full(5_000, 3))
    starts, counts = forecast.buckets()
    assert counts.sum() == 15_000
    assert len(starts) <= max(BUCKETS_MAX, days) + 1
    assert (starts % forecast.bucket_s == 0).all()


def test_the_forecast_counts_the_slots_of_a_target(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "target")
    forecast = read_forecast(StoreRoot(tmp_path / "target"), 1000)
    assert forecast.messages.sum() == len(MESSAGES)
    by_due = dict(zip(forecast.due_ms.tolist(), forecast.messages.tolist(), strict=True))
    assert by_due[WRITE_TIME_MS + 61_000] == 3
    assert forecast.peak_ms == WRITE_TIME_MS + 61_000
    assert forecast.peak_per_second == 3


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "target")
    (tmp_path / "file").write_text("")
    report = a_report(target=str(tmp_path / "target"))
    with pytest.raises(TargetError, match="cannot be written"):
        write_html_report(report, tmp_path / "file" / "report.html")


@pytest.mark.check
@pytest.mark.skipif(browser() is None, reason="needs Chromium to look at the page")
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    due = DueTimes.of(np.repeat([1_700_000_000_000, 1_700_000_060_500], [3, 1230]))
    page = tmp_path / "page.html"
    page.write_text(render_html_report(a_report(due=due), FORECAST))
    seen = (seen_in_a_browser(page, 2000) * 255).round().astype(int)
    bars = (seen == [0x33, 0x65, 0x8A]).all(axis=2)
    warnings = (seen == [0xFF, 0xF3, 0xCD]).all(axis=2)
    assert bars.sum() > 100, "the picture is not drawn"
    assert warnings.sum() > 10_000, "the style is not applied"
