"""Durations: text such as "10m" is refused everywhere, with the timedelta that it means."""

from __future__ import annotations

import pytest

from django_pgqueue import InvalidTask, Retry, Snooze, Step, Throttled, exponential, task
from django_pgqueue.durations import from_text
from tests.app import tasks


@pytest.mark.parametrize(
    "pass_text",
    [
        lambda text: Retry(text),
        lambda text: Retry(text, after=None),
        lambda text: Retry(after=text),
        lambda text: Snooze(text),
        lambda text: Throttled(text),
        lambda text: tasks.add.using(run_after=text),
        lambda text: tasks.add.using(expires=text),
        lambda text: task(timeout=text)(tasks.add.func),
        lambda text: task(backoff=text)(tasks.add.func),
        lambda text: task(retention=text)(tasks.add.func),
        lambda text: exponential(text),
        lambda text: Step("charge", retries=3, backoff=text),
    ],
)
def test_text_is_no_duration(pass_text):
    with pytest.raises((TypeError, InvalidTask), match=r"timedelta\(minutes=10\)"):
        pass_text("10m")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10m", "timedelta(minutes=10)"),
        (" 1.5 Hours ", "timedelta(hours=1.5)"),
        ("30s", "timedelta(seconds=30)"),
        ("2 weeks", "timedelta(weeks=2)"),
        ("7d", "timedelta(days=7)"),
        ("404", ""),
        ("in 10m", ""),
        ("busy", ""),
        (10, ""),
    ],
)
def test_text_has_the_timedelta_that_it_means(text, meant):
    assert from_text(text) == meant


def test_retry_keeps_a_reason_that_is_no_duration():
    assert (str(Retry("404")), Retry("404").after_seconds) == ("404", None)
    assert (str(Retry(60, "10m")), Retry(60, "10m").after_seconds) == ("10m", 60)
    assert str(Retry(reason="10m")) == "10m"
