"""`PGQUEUE`: defaults, units and error messages. The setting is read lazily, and again after `override_settings`."""

import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_pgqueue import InvalidTask, Task, fixed
from django_pgqueue.settings.conf import OPTIONS, Settings, get_settings, known_queues, problems
from django_pgqueue.settings.setting_kinds import retention_seconds
from tests.app import tasks

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
        ("LISTEN_DATABASE", {"default": "nowhere"}, "alias"),
        ("LISTEN_DATABASE", {"nowhere": "default"}, "alias"),
        ("LISTEN_DATABASE", {"default": []}, "alias"),
        ("LISTEN_DATABASE", ["default"], "alias"),
        ("TASK_MODULES", "app.jobs", "list"),
        ("TASK_MODULES", [1], "list"),
        ("TIMEOUT", 0, "positive"),
        ("BACKOFF", "soon", "seconds"),
        ("BACKOFF", len, "(exception, task_result)"),
        ("QUEUES", "mail", "list of names"),
        ("QUEUES", [], "list of names"),
        ("QUEUES", ["a b"], "characters"),
        ("ENVIRONMENT", None, "string"),
        ("ENVIRONMENT", "the staging", "characters"),
        ("CLONE_GUARD", True, '"refuse", "warn" or "off"'),
        ("RETENTION", {"ready": 5}, "succeeded"),
        ("RETENTION", {"dead": "never"}, "forever"),
        ("RETENTION", 5, "dict"),
        ("METRICS_PORT", 0, "port"),
        ("METRICS_PORT", 65536, "from 1 to 65535"),
        ("METRICS_PORT", True, "port"),
        ("METRICS_PORT", "9464", "port"),
        ("METRICS_ADDRESS", "localhost", "IP address"),
        ("METRICS_ADDRESS", 0, "IP address"),
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


@pytest.mark.parametrize(
    ("setting", "listens_on", "only_for_listen"),
    [
        (None, ["default", "b"], set()),
        ("direct", ["direct", "direct"], {"direct"}),
        ({"b": "direct"}, ["default", "direct"], {"direct"}),
        ({"b": "b"}, ["default", "b"], set()),
    ],
)
def test_listen_database_of_each_alias(setting, listens_on, only_for_listen):
    found = Settings(LISTEN_DATABASE=setting)
    assert [found.listen_alias(alias) for alias in ("default", "b")] == listens_on
    assert found.listen_aliases == only_for_listen


@pytest.mark.parametrize("token", ["", "too short", "fifteen-letters", "0123456789 abcdef", 1234567890123456])
def test_problems_invalid_token_is_reported_without_its_value(token):
    assert problems({"METRICS_TOKEN": token}) == [
        "PGQUEUE['METRICS_TOKEN'] must be None or a string of at least 16 of the characters A-Z a-z 0-9 - . _ ~ + / =."
    ]


def test_settings_hide_the_token_in_their_repr():
    with override_settings(PGQUEUE={"METRICS_TOKEN": "0123456789abcdef"}):
        found = get_settings()
    assert found.METRICS_TOKEN == "0123456789abcdef"
    assert "0123456789" not in repr(found)
    assert "LEASE" in repr(found)


def test_problems_several_options_are_all_reported():
    assert len(problems({"LEASE": 0, "GRACE": 0, "what": 1})) == 3


@pytest.mark.parametrize("given", [None, [], "LEASE=5", 5])
def test_problems_pgqueue_that_is_not_a_dict_is_reported(given):
    assert problems(given) == ["PGQUEUE must be a dict."]


# ------------------------------------------------------------------ defaults of tasks


def own_backoff(exception, task_result):
    return 5


def test_settings_for_tasks_accept_each_form():
    given = {"TIMEOUT": timedelta(minutes=1), "BACKOFF": own_backoff, "QUEUES": ("default", "mail")}
    with override_settings(PGQUEUE=given):
        found = get_settings()
    assert (60.0, own_backoff, ("default", "mail")) == (found.TIMEOUT, found.BACKOFF, found.QUEUES)


def test_settings_without_pgqueue_limit_no_task():
    with override_settings(PGQUEUE={"TIMEOUT": None, "BACKOFF": None, "QUEUES": None}):
        assert (get_settings().TIMEOUT, get_settings().BACKOFF, known_queues()) == (None, None, None)


def test_known_queues_of_invalid_settings_are_not_known():
    with override_settings(PGQUEUE={"QUEUES": ["mail"], "LEASE": 0}):
        assert known_queues() is None


@pytest.mark.parametrize("backoff", [fixed(7), timedelta(seconds=7), 7, lambda exception, task_result: 7])
def test_setting_backoff_applies_to_tasks_without_their_own(backoff):
    with override_settings(PGQUEUE={"BACKOFF": backoff}):
        assert 7 <= tasks.noop.delay_after(1, ValueError()) <= 7 * 1.3
        assert Task(func=tasks.noop.func, backoff=0).delay_after(1, ValueError()) == 0


def test_setting_timeout_applies_to_tasks_without_their_own():
    with override_settings(PGQUEUE={"TIMEOUT": 60}):
        assert (tasks.noop.timeout_seconds, tasks.log_behind_another.timeout_seconds) == (60, 0.3)
    assert tasks.noop.timeout_seconds is None


def test_settings_module_can_import_backoffs_of_the_package():
    """A settings file that imports this package must not need configured settings for it."""
    code = (
        "from django.conf import settings\n"
        "from django_pgqueue import exponential, fixed\n"
        "settings.configure(PGQUEUE={'BACKOFF': exponential(5)})\n"
        "from django_pgqueue.settings.conf import get_settings\n"
        "assert get_settings().BACKOFF(1, None) >= 5\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "hint"), [("defualt", "did you mean 'default'"), ("xyz", "the queues are 'default', 'mail'")]
)
def test_setting_queues_refuses_other_names_in_using(name, hint):
    with override_settings(PGQUEUE={"QUEUES": ["default", "mail"]}):
        assert tasks.noop.using(queue_name="mail").queue_name == "mail"
        with pytest.raises(InvalidTask, match=f"queue_name {name!r} is not in PGQUEUE.*{hint}"):
            tasks.noop.using(queue_name=name)


def test_setting_queues_refuses_a_default_queue_that_it_lacks():
    with (
        override_settings(PGQUEUE={"QUEUES": ["mail", "reports"]}),
        pytest.raises(InvalidTask, match="queue_name 'default' is not in"),
    ):
        Task(func=tasks.noop.func)
