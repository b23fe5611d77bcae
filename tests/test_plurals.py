"""Counts with their nouns, and durations that are rounded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue.display import duration
from django_pgqueue.ground.plurals import are, counted


def test_counted_has_the_noun_of_its_number():
    assert [counted(number) for number in (0, 1, 3743)] == ["0 jobs", "1 job", "3,743 jobs"]
    assert counted(2, "process", "processes") == "2 processes" and counted(1, "process", "processes") == "1 process"
    assert (are(1), are(2)) == ("is", "are")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(days=3) - timedelta(seconds=1), "3 d"),
        (timedelta(days=2, hours=11), "2 d"),
        (timedelta(hours=23, minutes=40), "1 d"),
        (timedelta(minutes=59, seconds=40), "1 h"),
        (timedelta(hours=1, minutes=20), "1 h"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=59.6), "1 min"),
        (timedelta(minutes=1, seconds=29), "1 min"),
        (timedelta(seconds=12), "12 s"),
    ],
)
def test_brief_duration_is_rounded(span, text):
    assert duration(span, brief=True) == text
