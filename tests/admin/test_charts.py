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
from django_pgqueue.admin.chart_scales import (
    highest_shown,
    number_text,
    seconds_text,
    top_of_duration,
    top_of_number,
)
from django_pgqueue.admin.chart_ticks import ticks
from django_pgqueue.admin.charts import (
    ChartValues,
    Mark,
    Period,
    Series,
    Slot,
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


SIXTY = [Slot(START + number * MINUTE, 60) for number in range(60)]
HOUR_OF_SLOTS = Period(START, START + 60 * MINUTE)


def hour_of_bars(values: list[float], before: charts.Before | None = None) -> charts.Chart:
    series = [Series("succeeded", "completed", values)]
    return charts.bars(ChartValues("attempts", "Attempts", HOUR_OF_SLOTS, SIXTY, series, (), before))


def before(values: list[float | None], first: datetime, seconds: float = 3600) -> charts.Before:
    slots = [Slot(first + number * timedelta(seconds=seconds), seconds) for number in range(len(values))]
    return charts.Before("the day before", slots, values)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], 0),
        ([None, 0, 0], 0),
        ([1000], 1000),
        ([1] * 6 + [1000], 1000),  # too few to say what is usual
        ([1] * 7 + [1000], 1),
        ([0] * 50 + [1] * 7 + [1000], 1),
        ([10] * 59 + [31], 10),
        ([10] * 59 + [30], 30),  # not more than three times as high
        ([10] * 57 + [1000] * 3, 10),
        ([10] * 56 + [1000] * 4, 1000),  # more than a twentieth is no spike
        (list(range(1, 61)), 60),
    ],
)
def test_axis_reaches_the_highest_value_that_is_no_spike(values: list[float | None], shown: float) -> None:
    assert highest_shown(values) == shown


def test_spike_is_cut_off_with_its_value_in_text():
    chart = hour_of_bars([30.0] * 40 + [1251.0] + [30.0] * 19)
    assert chart.y_labels[0] == "40"
    assert (chart.groups[0].bars[0].y, chart.groups[40].bars[0].y) == ("25.00", "0.00")
    assert list(chart.cuts) == [charts.Cut("67.50%", "middle", "▲ 1,251")]
    assert chart.cut_note == "Cut off at 40: 1,251 at 2026-03-01 12:40:00."
    assert "completed 1,251" in chart.groups[40].text and "at most 1,251" in chart.summary
    text = html(chart)
    assert '<text x="67.50%" y="11" text-anchor="middle">▲ 1,251</text>' in text and chart.cut_note in text


def test_spikes_side_by_side_have_signs_and_the_highest_are_listed():
    values = [30.0] * 100
    for number, value in {0: 900.0, 1: 901.0, 50: 950.0, 51: 902.0, 99: 903.0}.items():
        values[number] = value
    slots = [Slot(START + number * MINUTE, 60) for number in range(100)]
    period = Period(START, START + 100 * MINUTE)
    chart = charts.bars(ChartValues("a", "A", period, slots, [Series("succeeded", "completed", values)]))
    assert [(cut.anchor, cut.text) for cut in chart.cuts] == [("start", "▲ 900"), ("middle", "▲ 950"), ("end", "▲ 903")]
    assert chart.cut_note.startswith("Cut off at 40: 950 at 2026-03-01 12:50:00, 903 at")
    assert chart.cut_note.endswith(", 2 more.")


def test_chart_without_spike_is_not_cut():
    chart = hour_of_bars([30.0] * 60)
    assert (list(chart.cuts), chart.cut_note) == ([], "")
    assert "pgqueue-cut" not in html(chart)


def test_lines_cut_a_spike_off_too():
    values: list[float | None] = [1.0] * 20
    values[3] = 300.0
    slots = [Slot(START + number * MINUTE, 60) for number in range(20)]
    series = [Series("p50", "p50", [0.5] * 20), Series("p95", "p95", values)]
    chart = charts.lines(ChartValues("wait", "Wait", Period(START, START + 20 * MINUTE), slots, series))
    assert chart.y_labels[0] == "1.0 s" and [cut.text for cut in chart.cuts] == ["▲ 5 min"]


def test_day_before_is_drawn_as_steps_inside_the_period():
    chart = hour_of_bars([30.0] * 60, before([20.0, 40.0, 10.0], START - 30 * MINUTE))
    assert chart.before == "M0.00 50.00H500.00V0.00H1000.00"
    assert chart.groups[10].text.endswith("completed 30, the day before 20")
    assert chart.groups[40].text.endswith("completed 30, the day before 40")
    assert "the day before at most 40" in chart.summary
    text = html(chart)
    assert text.count(f'class="pgqueue-before" d="{chart.before}"') == 1 and "</svg>the day before</span>" in text
    assert "pgqueue-before-halo" in text, "the line is readable over bars"


def test_day_before_has_a_gap_without_values_and_counts_for_the_axis():
    chart = hour_of_bars([3.0] * 60, before([90.0, None, 90.0], START, 1200))
    assert chart.before == "M0.00 10.00H333.33M666.67 10.00H1000.00", "it is no spike of this day"
    assert chart.groups[30].text.endswith("completed 3")


def test_day_before_alone_is_a_chart():
    chart = hour_of_bars([0.0] * 60, before([20.0], START))
    assert not chart.is_empty and chart.before
    assert hour_of_bars([0.0] * 60, before([None], START)).is_empty


def test_shares_are_percents_and_no_failure_is_a_chart():
    series = [Series("share", "failed", [0.0, None, 0.031, 0.5])]
    chart = charts.shares(ChartValues("failures", "Failure rate", PERIOD, SLOTS, series))
    assert chart.y_labels == ["100 %", "50 %", "0 %"]
    texts = [group.text.partition(":00: ")[2] for group in chart.groups]
    assert texts == ["failed 0 %", "–", "failed 3.1 %", "failed 50 %"]
    good = charts.shares(ChartValues("failures", "F", PERIOD, SLOTS, [Series("share", "failed", [0.0] * 4)]))
    assert not good.is_empty and good.y_labels[0] == "1 %"


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


SHORT = timedelta(minutes=59)


@pytest.mark.parametrize(
    ("since", "length", "zone", "labels"),
    [
        ((1, 12, 7), SHORT, "UTC", ["12:15", "12:30", "12:45", "13:00"]),
        ((1, 12, 0), 4 * MINUTE, "UTC", ["12:00", "12:01", "12:02", "12:03", "12:04"]),
        ((1, 12, 7), timedelta(days=1), "UTC", ["16:00", "2026-03-02", "08:00"]),
        ((1, 12, 0), timedelta(days=7), "UTC", ["2026-03-02", "2026-03-05", "2026-03-08"]),
        ((1, 12, 7), SHORT, "Asia/Tokyo", ["21:15", "21:30", "21:45", "22:00"]),
        ((1, 12, 7), timedelta(days=1), "Asia/Kathmandu", ["2026-03-02", "08:00", "16:00"]),
        # The clocks go forward at 2:00 on 29 March: from midnight to 8:00 it is seven hours.
        ((28, 17, 0), timedelta(days=1), "Europe/Berlin", ["2026-03-29", "08:00", "16:00"]),
    ],
)
def test_ticks_are_at_round_times_of_the_time_zone(
    since: tuple[int, int, int], length: timedelta, zone: str, labels: list[str]
):
    start = datetime(2026, 3, *since, tzinfo=UTC)
    with override_settings(TIME_ZONE=zone):
        assert [label for _, label in ticks(start, start + length)] == labels
        assert {at.second for at, _ in ticks(start, start + length)} == {0}


def test_ticks_stand_at_their_moments():
    found = Period(START - 10 * MINUTE, START + 50 * MINUTE).ticks()
    assert [(x, label) for x, label, _ in found] == list(
        zip(("16.67", "41.67", "66.67", "91.67"), ("12:00", "12:15", "12:30", "12:45"), strict=True)
    )
    assert [anchor for _, _, anchor in found] == ["middle", "middle", "middle", "end"]
    text = html(bars([0] * 4, [1] * 4))
    assert '<text x="0.00%" y="16" text-anchor="start">12:00</text>' in text
    assert '<text x="50.00%" y="16" text-anchor="middle">12:02</text>' in text


class Numbers(HTMLParser):
    """Collect the attributes of shapes that are not plain numbers or paths."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.wrong: list[object] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_number = re.fullmatch(r"-?\d+(\.\d+)?" + "%?" * (tag in {"text", "line"}), value or "")
            if name in {"x", "y", "width", "height"} and not is_number:
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
