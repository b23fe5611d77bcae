"""`--all-databases` of commands that read: one answer for each database, also if one of them is away."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import OperationalError, connection
from django.test import RequestFactory

from django_pgqueue.doctor import Finding, Level
from django_pgqueue.management.subcommands import doctor_command, status_command
from django_pgqueue.metrics import metrics_view, view
from tests import helpers

pytestmark = pytest.mark.usefixtures("other")


@pytest.fixture
def lost(monkeypatch):
    """Let the figures of the alias `other` be unreadable."""
    real = status_command.current

    def current(database, **options):
        if database == "other":
            raise OperationalError("connection refused\n\tis it running?")
        return real(database, **options)

    monkeypatch.setattr(status_command, "current", current)


def test_status_of_all_databases_prints_each(pgqueue):
    helpers.make_job(connection, queue_name="mail")
    lines = pgqueue("status", "--all-databases").out.splitlines()
    shown = [line[:18] for line in lines if line.startswith(("Database", "due "))]
    assert shown == ["Database 'default'", "due         1, the", "Database 'other'", "due         1, the"]
    document = pgqueue("status", "--all-databases", "--json").document
    assert [*document] == ["databases"]
    assert {alias: about["due"]["value"] for alias, about in document["databases"].items()} == {
        "default": 1,
        "other": 1,
    }
    assert pgqueue("status", "--json").document.keys() == document["databases"]["default"].keys()


@pytest.mark.usefixtures("lost")
def test_status_of_all_databases_shows_others_and_fails(pgqueue):
    for arguments, text in (((), "cannot be read: connection refused is it running?"), (("--json",), '"error":')):
        out = StringIO()
        with pytest.raises(SystemExit) as caught:
            pgqueue("status", "--all-databases", *arguments, stdout=out)
        assert caught.value.code == 1
        assert text in out.getvalue()
        assert "due" in out.getvalue()


def test_doctor_of_all_databases_examines_each(pgqueue, monkeypatch):
    def examine(alias):
        level = Level.WARNING if alias == "other" else Level.OK
        return [Finding(id="indexes", level=level, what=f"seen on {alias}", why="why", fix="", data={})]

    monkeypatch.setattr(doctor_command, "examine", examine)
    text = pgqueue("doctor", "--all-databases").out
    assert "Database 'default'\nok       indexes: seen on default" in text
    assert "Database 'other'\nwarning  indexes: seen on other" in text
    documents = pgqueue("doctor", "--all-databases", "--json").document["databases"]
    assert {alias: about["database"] for alias, about in documents.items()} == {"default": "default", "other": "other"}
    assert pgqueue("doctor", "--database", "other", "--json").document["database"] == "other"
    with pytest.raises(SystemExit):
        pgqueue("doctor", "--all-databases", "--fail-on", "warning")


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_one_and_all_databases_are_refused_together(pgqueue, command):
    with pytest.raises(CommandError, match="not allowed with argument --database"):
        pgqueue(command, "--database", "other", "--all-databases")


def test_metrics_view_of_several_databases_has_label():
    helpers.make_job(connection, queue_name="mail")
    view.figures.clear()
    request = RequestFactory().get("/metrics")
    request.user = User(is_active=True, is_staff=True, is_superuser=True)
    text = metrics_view(request, ["default", "other"]).content.decode()
    for alias in ("default", "other"):
        assert f'pgqueue_jobs{{database="{alias}",queue="mail",state="due"}} 1.0\n' in text
    assert text.count("# TYPE pgqueue_jobs gauge\n") == 1
    assert "database=" not in metrics_view(request, "other").content.decode()
