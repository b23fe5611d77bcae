"""`manage.py check` reports invalid options of an entry in TASKS."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks


def problems():
    """Return each message once: Django's framework and an imported backport both check the setting."""
    return [*dict.fromkeys(str(message.msg) for message in run_checks() if message.id == "pgqueue.E004")]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"DATABSE": "default"}, "DATABSE"), ({"DATABASE": "nowhere"}, "nowhere"), ({"UNIQUE_KEY": "k"}, "UNIQUE_KEY")],
)
def test_check_invalid_option_is_named(configure, options, word):
    configure(OPTIONS=options)
    [problem] = problems()
    assert word in problem


def test_check_valid_options_report_nothing(configure):
    configure(OPTIONS={"DATABASE": "default", "MAX_ATTEMPTS": 3, "BACKOFF": 10, "TIMEOUT": 60, "RETENTION": 3600})
    assert problems() == []


def test_check_invalid_value_names_the_option(configure):
    configure(OPTIONS={"MAX_ATTEMPTS": 0})
    [problem] = problems()
    assert "max_attempts" in problem


def test_check_options_beside_backend_report_nothing(configure):
    configure(MAX_ATTEMPTS=3, BACKOFF=10, TIMEOUT=60, OPTIONS={"MAX_ATTEMPTS": 3})
    assert problems() == []


def test_check_invalid_value_beside_backend_names_the_option(configure):
    configure(TIMEOUT=-1)
    [problem] = problems()
    assert "timeout" in problem


def test_check_option_that_differs_in_two_places_is_reported(configure):
    configure(MAX_ATTEMPTS=3, OPTIONS={"MAX_ATTEMPTS": 5, "TIMEOUT": 60})
    [problem] = problems()
    assert "MAX_ATTEMPTS beside BACKEND and in OPTIONS have different values" in problem
