"""`PGQUEUE`: defaults, units and error messages. The setting is read lazily, and again after `override_settings`."""

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_pgqueue.conf import OPTIONS, get_settings, problems, retention_seconds

DAY = 24 * 3600


def test_settings_without_pgqueue_have_defaults():
    with override_settings():
        options = get_settings()
    assert (options.MAX_ATTEMPTS, options.LEASE, options.heartbeat_seconds) == (10, 60.0, 15.0)
    assert options.retention_seconds("succeeded") == 7 * DAY
    assert options.retention_seconds("dead") == 90 * DAY


def test_settings_durations_are_seconds_or_timedelta():
    with override_settings(PGQUEUE={"LEASE": timedelta(minutes=2), "GRACE": 5}):
        assert (get_settings().LEASE, get_settings().heartbeat_seconds, get_settings().GRACE) == (120.0, 30.0, 5.0)


def test_settings_are_cached_until_they_change():
    before = get_settings()
    assert get_settings() is before
    with override_settings(PGQUEUE={"MAX_ATTEMPTS": 3}):
        assert get_settings().MAX_ATTEMPTS == 3
    assert get_settings().MAX_ATTEMPTS == before.MAX_ATTEMPTS


def test_settings_retention_by_state_keeps_other_defaults():
    with override_settings(PGQUEUE={"RETENTION": {"dead": "forever", "cancelled": timedelta(days=1)}}):
        options = get_settings()
    assert options.retention_seconds("dead") is None
    assert options.retention_seconds("cancelled") == DAY
    assert options.retention_seconds("succeeded") == 7 * DAY
    assert retention_seconds(0) == 0


@pytest.mark.parametrize(
    ("key", "close"), [("MAX_ATTEMTPS", "MAX_ATTEMPTS"), ("lease", "LEASE"), ("POLL_INTERVALL", "POLL_INTERVAL")]
)
def test_problems_misspelt_option_suggests_the_right_one(key, close):
    [problem] = problems({key: 1})
    assert repr(key) in problem
    assert f"Did you mean {close!r}?" in problem


def test_problems_unknown_option_lists_all_options():
    [problem] = problems({"XYZ": 1})
    assert all(name in problem for name in OPTIONS)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("MAX_ATTEMPTS", 0, "whole number"),
        ("MAX_ATTEMPTS", "10", "whole number"),
        ("CONCURRENCY", True, "whole number"),
        ("CONCURRENCY", 2.5, "whole number"),
        ("LEASE", 0, "positive"),
        ("LEASE", -5, "positive"),
        ("LEASE", "60", "positive"),
        ("LEASE", float("nan"), "positive"),
        ("LEASE", float("inf"), "positive"),
        ("LEASE", True, "positive"),
        ("NOTIFY", 1, "True or False"),
        ("LISTEN_DATABASE", "nowhere", "alias"),
        ("TASK_MODULES", "app.jobs", "list"),
        ("TASK_MODULES", [1], "list"),
        ("RETENTION", {"ready": 5}, "succeeded"),
        ("RETENTION", {"dead": "never"}, "forever"),
        ("RETENTION", 5, "dict"),
    ],
)
def test_problems_invalid_value_names_the_requirement(key, value, wanted):
    [problem] = problems({key: value})
    assert problem.startswith(f"PGQUEUE[{key!r}] must be")
    assert wanted in problem
    assert repr(value) in problem
    with override_settings(PGQUEUE={key: value}), pytest.raises(ImproperlyConfigured) as raised:
        get_settings()
    assert str(raised.value) == problem


def test_problems_several_options_are_all_reported():
    assert len(problems({"LEASE": 0, "GRACE": 0, "what": 1})) == 3


@pytest.mark.parametrize("given", [None, [], "LEASE=5", 5])
def test_problems_pgqueue_that_is_not_a_dict_is_reported(given):
    assert problems(given) == ["PGQUEUE must be a dict."]
