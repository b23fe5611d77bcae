"""`manage.py pgqueue import-celery-beat`: what it reads, what it prints, and what it adds with `--apply`."""

import json
import re
import sys
import types
from datetime import date, datetime, timedelta
from io import StringIO

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import cron, every, task
from django_pgqueue.models import Job, Schedule
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import tasks

from .standins import Crontab, Every, Solar

WEEKDAYS = {1, 2, 3, 4, 5}
BEAT = {
    "report": {
        "task": "tests.app.tasks.add",
        "schedule": Crontab(minute={30}, hour={7}, day_of_week=WEEKDAYS),
        "args": (1, 2),
    },
    "refresh": {"task": "old.noop", "schedule": 300, "kwargs": {"what": "stock"}, "options": {"queue": "slow"}},
    "dawn": {"task": "old.noop", "schedule": Solar("sunrise", 48.8, 2.3)},
}
SOLAR = "a solar schedule has no equivalent: run the task by the clock, and let it compute the sun's position"
MAP = ("--map", "old.noop=tests.app.tasks.noop")


def run(*arguments):
    output = StringIO()
    call_command("pgqueue", "import-celery-beat", *arguments, stdout=output)
    return output.getvalue()


@pytest.fixture
def beat(db):
    with override_settings(CELERY_BEAT_SCHEDULE=BEAT, CELERY_TIMEZONE="Europe/Paris"):
        yield


@pytest.fixture
def tables(db):
    """Install the stand-in for django-celery-beat, with its tables."""
    with override_settings(INSTALLED_APPS=["tests.beat_tables", *settings.INSTALLED_APPS]):
        models = list(apps.get_app_config("django_celery_beat").get_models())
        with connection.schema_editor() as editor:
            for model in models:
                editor.create_model(model)
        yield types.SimpleNamespace(**{model.__name__: model for model in models})
    apps.all_models.pop("django_celery_beat", None)
    apps.clear_cache()
    for name in ("tests.beat_tables.models", "tests.beat_tables.apps"):
        sys.modules.pop(name, None)


def test_dry_run_prints_the_table_and_writes_nothing(beat):
    lines = run(*MAP).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "schedule task when result",
        f"dawn old.noop - cannot be moved: {SOLAR}",
        "refresh tests.app.tasks.noop every 5 minutes add",
        "report tests.app.tasks.add 30 7 * * 1-5 Europe/Paris add",
        "Would add 2 of 3 schedules; 1 cannot be moved. Repeat with --apply.",
    ]
    assert not Schedule.objects.exists()


def test_apply_adds_schedules_that_fire(beat):
    assert "Added 2 of 3 schedules; 1 cannot be moved. Stop beat now." in run(*MAP, "--apply")
    report = Schedule.objects.get(name="report")
    assert (report.origin, report.task_name, report.expression, report.time_zone, report.enabled) == (
        "admin",
        tasks.add.name,
        "30 7 * * 1-5",
        "Europe/Paris",
        True,
    )
    assert (report.missed, report.if_running, report.jitter_seconds) == ("latest", "overlap", 0)
    assert report.next_run_at > timezone.now()
    run_jobs(until=timedelta(minutes=6), schedules=True)
    job = Job.objects.filter(task_name=tasks.noop.name).latest("pk")
    assert (job.arguments, job.state, job.queue_name) == (
        {"args": [], "kwargs": {"what": "stock"}},
        "succeeded",
        "slow",
    )
    assert (report.has_own_queue, report.queue_name) == (False, tasks.add.queue_name)


def test_apply_again_changes_nothing(beat):
    run(*MAP, "--apply")
    before = list(Schedule.objects.order_by("pk").values())
    output = run(*MAP, "--apply")
    assert "Added 0 of 3" in output
    assert output.count(" exists\n") == 2
    assert list(Schedule.objects.order_by("pk").values()) == before


def test_apply_leaves_a_changed_schedule_alone(beat):
    run(*MAP, "--apply")
    Schedule.objects.filter(name="report").update(expression="0 8 * * *")
    assert "exists with other values, which stay" in run(*MAP, "--apply")
    assert Schedule.objects.get(name="report").expression == "0 8 * * *"


def test_apply_reports_a_schedule_with_another_queue(beat):
    run(*MAP, "--apply")
    Schedule.objects.filter(name="refresh").update(queue_name="fast")
    assert run(*MAP, "--apply").count("exists with other values, which stay") == 1
    Schedule.objects.filter(name="refresh").update(has_own_queue=False, queue_name="slow")
    assert run(*MAP, "--apply").count("exists with other values, which stay") == 1


def test_entry_with_unlisted_queue_is_refused(beat, settings):
    settings.PGQUEUE = {"QUEUES": ["default", "mail"]}
    output = run(*MAP, "--apply")
    assert re.search(r"refresh .* cannot be moved: .*'slow' is not in PGQUEUE\['QUEUES'\]", output), output
    assert [schedule.name for schedule in Schedule.objects.all()] == ["report"]


def test_entry_with_mistyped_queue_gets_a_note_and_moves(db):
    entry = {"task": "tests.app.tasks.noop", "schedule": 60, "options": {"queue": "defualt"}}
    with override_settings(CELERY_BEAT_SCHEDULE={"noop": entry}):
        assert "note: no task, schedule, waiting job or recent job uses the queue 'defualt'" in run("--apply")
        assert "note" not in run("--apply"), "now this schedule uses the queue"
    assert Schedule.objects.get().queue_name == "defualt"


def test_schedule_of_the_code_is_not_added_again(beat):
    run(*MAP, "--apply")
    Schedule.objects.filter(name="report").update(origin="code")
    assert "exists in the code" in run(*MAP, "--apply")
    assert Schedule.objects.filter(name="report").count() == 1


def test_apply_with_paused_adds_paused_schedules(beat):
    assert "added, paused" in run(*MAP, "--apply", "--paused")
    assert not Schedule.objects.filter(enabled=True).exists()


def test_python_prints_schedules_that_can_be_pasted(beat):
    code = run(*MAP, "--python")
    assert "# dawn: cannot be moved: a solar schedule" in code
    names: dict = {}
    first, second = code.split("# tests.app.tasks.add\n")
    exec(first, names)  # noqa: S102 -- printed by the command
    assert names["schedule"] == every(minutes=5, kwargs={"what": "stock"}, queue_name="slow", name="refresh")
    exec(second, names)  # noqa: S102 -- printed by the command
    assert names["schedule"] == cron("30 7 * * 1-5", tz="Europe/Paris", args=[1, 2], name="report")


def test_python_prints_several_schedules_of_a_task_as_a_list(db):
    entries = {name: {"task": "tests.app.tasks.noop", "schedule": 60} for name in ("a", "b")}
    names: dict = {}
    with override_settings(CELERY_BEAT_SCHEDULE=entries):
        exec(run("--python"), names)  # noqa: S102 -- printed by the command
    assert names["schedule"] == [every(minutes=1, name="a"), every(minutes=1, name="b")]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"task": "nowhere.task", "schedule": 60}, "no task is named 'nowhere.task': .* --map nowhere.task=NEW"),
        ({"task": "tests.app.tasks.add", "schedule": 60}, "missing .*argument"),
        ({"task": "tests.app.tasks.add", "schedule": 60, "args": [{1}]}, "JSON|set"),
        ({"task": "tests.app.tasks.noop", "schedule": 0.5}, "whole seconds"),
        ({"task": "tests.app.tasks.noop"}, "unknown type"),
    ],
)
def test_entry_without_equivalent_is_refused_and_others_move(db, entry, reason):
    entries = {"bad": entry, "good": {"task": "tests.app.tasks.noop", "schedule": 60}}
    with override_settings(CELERY_BEAT_SCHEDULE=entries):
        output = run("--apply")
    assert re.search(f"cannot be moved: .*{reason}", output), output
    assert [schedule.name for schedule in Schedule.objects.all()] == ["good"]


def test_entry_with_options_gets_a_note_for_each(db):
    options = {"queue": "q", "priority": 3, "expires": 60, "routing_key": "r", "soft_time_limit": 5}
    entry = {"task": "tests.app.tasks.noop", "schedule": Every(timedelta(hours=1)), "options": options}
    with override_settings(CELERY_BEAT_SCHEDULE={"noop": entry}):
        notes = [line.split()[1] for line in run().splitlines() if "note:" in line]
        assert notes == sorted(options.keys() - {"queue"})
        code = run("--python")
        assert code.count("# note: ") == len(options) - 1
        assert "every(hours=1, queue_name='q', name='noop')" in code


@pytest.mark.parametrize(
    ("celery", "arguments", "zone"),
    [
        ({}, (), "UTC"),
        ({"CELERY_TIMEZONE": "Asia/Tokyo"}, (), "Asia/Tokyo"),
        ({"CELERY_TIMEZONE": "Asia/Tokyo"}, ("--time-zone", "Europe/Oslo"), "Europe/Oslo"),
        ({"CELERY_ENABLE_UTC": False}, ("--time-zone", "Europe/Oslo"), "Europe/Oslo"),
    ],
)
def test_crontab_gets_the_time_zone_of_celery(db, celery, arguments, zone):
    entries = {"noop": {"task": "tests.app.tasks.noop", "schedule": Crontab()}}
    with override_settings(CELERY_BEAT_SCHEDULE=entries, **celery):
        assert f"* * * * * {zone} " in run(*arguments)


def test_crontab_with_clock_of_the_host_asks_for_the_zone(db):
    entries = {"noop": {"task": "tests.app.tasks.noop", "schedule": Crontab()}}
    with override_settings(CELERY_BEAT_SCHEDULE=entries, CELERY_ENABLE_UTC=False):
        assert "cannot be moved: the time zone of its crontab is unknown: pass --time-zone" in run()


class App:
    """Like a Celery app: `beat_schedule` is complete after `finalize()`."""

    def __init__(self):
        self.conf = types.SimpleNamespace(beat_schedule={}, timezone="Asia/Tokyo", enable_utc=True)

    def finalize(self):
        self.conf.beat_schedule["added"] = {"task": "tests.app.tasks.noop", "schedule": Crontab()}


def test_loaded_app_adds_its_periodic_tasks(db, monkeypatch):
    monkeypatch.setitem(sys.modules, "celery", types.SimpleNamespace(current_app=App()))
    assert "added" in run()
    assert "* * * * * Asia/Tokyo" in run()
    with override_settings(CELERY_BEAT_SCHEDULE={"own": {"task": "celery.backend_cleanup", "schedule": 60}}):
        assert "own" not in run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--map", "old.noop"), "Invalid --map 'old.noop': use OLD=NEW"),
        (("--map", "old.noop=nowhere"), "no task is named 'nowhere'"),
        (("--time-zone", "Mars/Base"), "invalid time zone 'Mars/Base'"),
        (("--apply", "--python"), "either --python"),
    ],
)
def test_invalid_arguments_are_refused(beat, arguments, message):
    with pytest.raises(CommandError, match=message):
        run(*arguments)


def test_no_beat_schedule_says_where_it_looked(db):
    with pytest.raises(CommandError, match=r"CELERY_BEAT_SCHEDULE is not set, .* django_celery_beat"):
        run()


# ------------------------------------------------------------------ django-celery-beat


def test_tables_give_crontabs_and_intervals(tables):
    weekly = tables.CrontabSchedule.objects.create(minute="0", hour="9", day_of_week="mon", timezone="Asia/Tokyo")
    often = tables.IntervalSchedule.objects.create(every=10, period="minutes")
    tables.PeriodicTask.objects.create(
        name="weekly", task="tests.app.tasks.add", crontab=weekly, args="[1]", kwargs='{"b": 2}', expire_seconds=60
    )
    tables.PeriodicTask.objects.create(name="often", task="tests.app.tasks.noop", interval=often, enabled=False)
    output = run("--apply")
    assert "0 9 * * 1 Asia/Tokyo" in output
    assert "note: expires 60 is not moved" in output
    assert output.count("note:") == 1
    rows = Schedule.objects.order_by("name").values_list("name", "expression", "time_zone", "enabled", "arguments")
    assert list(rows) == [
        ("often", "every 10 minutes", "UTC", False, {"args": [], "kwargs": {}}),
        ("weekly", "0 9 * * 1", "Asia/Tokyo", True, {"args": [1], "kwargs": {"b": 2}}),
    ]


def test_tables_rows_without_equivalent_say_why(tables):
    every_minute = tables.IntervalSchedule.objects.create(every=1, period="minutes")
    moment = timezone.now() + timedelta(days=1)
    common = {"task": "tests.app.tasks.noop"}
    new = tables.PeriodicTask.objects.create
    new(name="solar", solar=tables.SolarSchedule.objects.create(event="dawn", latitude=1, longitude=1), **common)
    new(name="clocked", clocked=tables.ClockedSchedule.objects.create(clocked_time=moment), **common)
    new(name="once", interval=every_minute, one_off=True, **common)
    new(name="later", interval=every_minute, start_time=moment, **common)
    new(name="ends", interval=every_minute, expires=moment, **common)
    new(name="arguments", interval=every_minute, args="[1", **common)
    new(name="fields", crontab=tables.CrontabSchedule.objects.create(hour="25"), **common)
    new(name="begun", interval=every_minute, start_time=timezone.now() - timedelta(days=1), **common)
    output = run("--apply")
    reasons = dict(line.split(" cannot be moved: ") for line in output.splitlines() if " cannot be moved: " in line)
    assert {line.split()[0]: reason.split(":")[0] for line, reason in reasons.items()} == {
        "solar": "a solar schedule has no equivalent",
        "clocked": "it runs only once",
        "once": "it runs only once",
        "later": f"it starts at {datetime_text(moment)}",
        "ends": f"it ends at {datetime_text(moment)}",
        "arguments": "its arguments are not a JSON list and a JSON object",
        "fields": "its hour '25' is not from 0 to 23",
    }
    assert [schedule.name for schedule in Schedule.objects.all()] == ["begun"]


def datetime_text(moment: datetime) -> str:
    return str(moment).partition(":")[0]


def test_tables_row_counts_more_than_the_settings(tables):
    interval = tables.IntervalSchedule.objects.create(every=3, period="hours")
    tables.PeriodicTask.objects.create(name="noop", task="tests.app.tasks.noop", interval=interval)
    with override_settings(CELERY_BEAT_SCHEDULE={"noop": {"task": "tests.app.tasks.noop", "schedule": 60}}):
        run("--apply")
    assert Schedule.objects.get().expression == "every 3 hours"


def test_tables_that_do_not_exist_are_left_out(db):
    with override_settings(
        INSTALLED_APPS=["tests.beat_tables", *settings.INSTALLED_APPS],
        CELERY_BEAT_SCHEDULE={"noop": {"task": "tests.app.tasks.noop", "schedule": 60}},
    ):
        assert "Would add 1 of 1 schedule;" in run()


def test_command_never_imports_celery(beat, tmp_path, monkeypatch):
    (tmp_path / "celery.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "celery", raising=False)
    assert "Would add 2 of 3 schedules" in run(*MAP)


def test_arguments_are_stored_as_json(beat):
    run(*MAP, "--apply")
    with connection.cursor() as cursor:
        cursor.execute("SELECT arguments::text FROM pgqueue_schedule WHERE name = 'report'")
        assert json.loads(cursor.fetchone()[0]) == {"args": [1, 2], "kwargs": {}}


@task
def charge_until(day: date, token: str = "") -> str:
    return day.isoformat()


@pytest.mark.parametrize("given", [date(2026, 7, 1), "2026-07-01"])
def test_typed_arguments_are_converted_or_are_json_already(db, given):
    """The settings have Python values. What django-celery-beat has stored is JSON."""
    entry = {"task": charge_until.name, "schedule": 60, "args": [given]}
    with override_settings(CELERY_BEAT_SCHEDULE={"charge": entry}):
        run("--apply")
    assert Schedule.objects.get().arguments == {"args": ["2026-07-01"], "kwargs": {}}
    run_jobs(until=timedelta(minutes=2), schedules=True, raising=True)
    assert Job.objects.latest("pk").result == "2026-07-01"


def test_sensitive_arguments_stay_in_the_code(db, monkeypatch):
    monkeypatch.setitem(registry._tasks, "secretive", task(sensitive={"token"}, name="secretive")(charge_until.func))
    entry = {"task": "secretive", "schedule": 60, "args": ["2026-07-01", "s3cret"]}
    with override_settings(CELERY_BEAT_SCHEDULE={"charge": entry}):
        output = run("--apply") + run("--python")
    assert output.count("it has sensitive arguments") == 2
    assert "s3cret" not in output
    assert not Schedule.objects.exists()
