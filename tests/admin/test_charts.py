"""Charts: the shapes fit their values, failures differ without colour, and every number is text without a locale."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from django.template.loader import render_to_string
from django.test import override_settings
from django.utils import translation

from django_pgqueue.admin import charts
from django_pgqueue.admin.charts import (
    ChartValues,
    Mark,
    Period,
    Series,
    Slot,
    number_text,
    seconds_text,
    top_of_duration,
    top_of_number,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PERIOD = Period(START, START + 4 * MINUTE)
SLOTS = [Slot(START + number * MINUTE, 60) for number in range(4)]


def bars(failed: list[float | None], completed: list[float | None], *marks: Mark) -> charts.Chart:
    series = [Series("failed", "failed", failed), Series("succeeded", "completed", completed)]
    return charts.bars(ChartValues("attempts", "Attempts", PERIOD, SLOTS, series, marks))


def lines(values: list[float | None], slots: list[Slot] | None = None) -> charts.Chart:
    slots = SLOTS if slots is None else slots
    return charts.lines(ChartValues("wait", "Wait", PERIOD, slots, [Series("p95", "p95", values)]))


def html(chart: charts.Chart) -> str:
    return render_to_string("pgqueue/admin/chart.html", {"chart": chart})


def test_bars_stack_to_the_sum_of_their_values():
    chart = bars([10, 0, None, 0], [30, 40, 0, 0])
    assert chart.y_labels == ["40", "20", "0"]
    failed, completed = chart.groups[0].bars
    assert (failed.name, failed.y, failed.height) == ("failed", "75.00", "25.00")
    assert (completed.name, completed.y, completed.height) == ("succeeded", "0.00", "75.00")
    [full] = chart.groups[1].bars
    assert (full.y, full.height, full.x, full.width) == ("0.00", "100.00", "262.50", "225.00")
    assert [len(group.bars) for group in chart.groups] == [2, 1, 0, 0]


def test_bars_one_failure_among_thousands_is_visible():
    [failed, _] = bars([1, 0, 0, 0], [10_000, 0, 0, 0]).groups[0].bars
    assert float(failed.height) >= 1.5


def test_bars_and_lines_differ_without_colour():
    text = html(bars([10, 0, 0, 0], [30, 40, 0, 0]))
    assert text.count("url(#pgqueue-hatch-attempts)") == 2  # the bar and the legend
    assert 'id="pgqueue-hatch-attempts"' in text
    assert "pgqueue-line pgqueue-series-p95" in html(lines([1, 2, 3, 4]))


def test_lines_break_at_missing_values():
    [line] = lines([1.0, 2.0, None, 4.0]).lines
    assert line.path == "M125.00 75.00L375.00 50.00M750.00 0.00H1000.00"
    [line] = lines([1.0, 2.0], [SLOTS[0], SLOTS[3]]).lines
    assert line.path.count("M") == 2
    assert lines([None] * 4).is_empty


def test_tooltips_and_summary_name_time_and_values():
    chart = bars([1, 0, 0, 0], [30, 40.5, 0, 0])
    assert chart.groups[1].text == "2026-03-01 12:01:00: failed 0, completed 40"
    assert chart.summary == (
        "Attempts, 2026-03-01 12:00:00 – 2026-03-01 12:04:00. failed at most 1, at 2026-03-01 12:00:00. "
        "completed at most 40, at 2026-03-01 12:01:00."
    )
    assert "p95 at most 1.5 s, at 2026-03-01 12:01:00" in lines([0.1, 1.5, 1.0, None]).summary
    text = html(chart)
    assert 'role="img" aria-label="Attempts, 2026-03-01 12:00' in text
    assert "<title>2026-03-01 12:01:00: failed 0, completed 40</title>" in text


def test_marks_inside_the_period_are_drawn_and_named():
    marks = (Mark(START + 2 * MINUTE, "version <b>"), Mark(START - MINUTE, "before"))
    chart = bars([0] * 4, [1] * 4, *marks)
    assert list(chart.marks) == [("500.00", "2026-03-01 12:02:00 version <b>", "release")]
    assert "<title>2026-03-01 12:02:00 version &lt;b&gt;</title>" in html(chart)


def test_labels_are_the_ends_and_the_middle_of_any_period():
    week = Period(START, START + timedelta(days=7))
    assert week.labels() == ["2026-03-01 12:00:00", "2026-03-05 00:00:00", "2026-03-08 12:00:00"]
    assert PERIOD.labels()[1] == "2026-03-01 12:02:00"


def test_labels_are_in_the_current_time_zone():
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert PERIOD.labels()[0] == "2026-03-01 21:00:00"


class Numbers(HTMLParser):
    """Collect the attributes of shapes that are not plain numbers or paths."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.wrong: list[object] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"x", "y", "width", "height"} and not re.fullmatch(r"-?\d+(\.\d+)?", value or ""):
                self.wrong.append((tag, name, value))
            if name == "d" and not re.fullmatch(r"[MLHVhv0-9. ]+", value or ""):
                self.wrong.append((tag, name, value))


@pytest.mark.parametrize("language", ["en", "de"])
@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_shapes_have_plain_numbers_in_every_language(language: str):
    with translation.override(language):
        for chart in (bars([0.1, 2, 3, 4], [3000.5, 1, 2, 3], Mark(START, "v")), lines([0.0123, 4000.5, None, 1])):
            text = html(chart)
            assert Numbers(text).wrong == []
            assert "style=" not in text


def test_empty_chart_says_so():
    text = html(bars([0] * 4, [None] * 4))
    assert "No attempt ended in this period." in text and "<svg" not in text


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 2), (2, 2), (2.1, 4), (5, 10), (10, 10), (11, 20), (399, 400), (401, 1000)]
)
def test_top_of_number_is_round(highest: float, top: float):
    assert top_of_number(highest) == pytest.approx(top)


@pytest.mark.parametrize(("highest", "top"), [(0, 0.001), (0.7, 1.0), (59, 60), (61, 120), (3601, 7200), (1e9, 1e9)])
def test_top_of_duration_is_round(highest: float, top: float):
    assert top_of_duration(highest) == top


def test_texts_of_values_are_short():
    assert [number_text(value) for value in (0, 0.25, 4, 9.96, 12.7, 12_345)] == ["0", "0.2", "4", "10", "13", "12,345"]
    assert [seconds_text(value) for value in (0, 0.0123, 90)] == ["0", "12 ms", "1 min 30 s"]
