"""Durations: text such as "10m" is refused everywhere, with the timedelta that it means."""

from __future__ import annotations

import pytest

from django_pgqueue import InvalidTask, Retry, Snooze, Step, Throttled, exponential, fixed, task
from django_pgqueue.durations import from_text
from django_pgqueue.stats.task_descriptions import own_options
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
    assert (str(Retry("HTTP 404")), Retry("HTTP 404").after_seconds) == ("HTTP 404", None)
    assert (str(Retry(reason="404")), Retry(reason="404").after_seconds) == ("404", None)
    assert (str(Retry(60, "10m")), Retry(60, "10m").after_seconds) == ("10m", 60)
    assert str(Retry(reason="10m")) == "10m"


def test_backoff_is_named_after_the_call_that_made_it():
    """`manage.py pgqueue tasks` and the page of tasks show the name."""
    assert exponential(1, cap=10).__name__ == "exponential(1, factor=2, cap=10, jitter=0.3)"
    assert fixed(60).__name__ == "fixed(60)"
    described = own_options(task(backoff=exponential(1, cap=10))(tasks.add.func))
    assert described["backoff"].startswith("exponential(1, ")
