"""What docs/reference/checks.md and the production checklist say about `manage.py check` and its options."""

import re
from io import StringIO

import pytest
from django.core.checks import registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from django_pgqueue.tasks import registry as ours
from tests.documents import PAGES

pytestmark = pytest.mark.usefixtures("tasks_of_this_project")


@pytest.fixture
def tasks_of_this_project(monkeypatch):
    """Keep only the tasks that a worker with these settings imports. Other tests can have imported other projects."""
    found = {name: task for name, task in ours._tasks.items() if ours.is_found_by_workers(task.func.__module__)}
    monkeypatch.setattr(ours, "_tasks", found)


def run_check(*arguments):
    output = StringIO()
    call_command("check", *arguments, stdout=output, stderr=output)
    return output.getvalue()


@override_settings(PGQUEUE={"IMMEDIATE": True})
@pytest.mark.django_db
def test_check_command_immediate_is_reported_for_deploy_only():
    assert "pgqueue" not in run_check()
    assert "pgqueue.W002" in run_check("--deploy")
    assert "pgqueue.W002" in run_check("--deploy", "--database", "default")


@pytest.mark.parametrize(
    ("options", "is_reported"), [({}, True), ({"ENVIRONMENT": "staging"}, False), ({"CLONE_GUARD": "off"}, False)]
)
def test_check_command_missing_environment_is_reported(options, is_reported):
    with override_settings(PGQUEUE=options):
        assert ("pgqueue.W004" in run_check("--deploy")) is is_reported
        assert "pgqueue.W004" not in run_check()


@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_check_command_warning_fails_with_fail_level_only():
    with pytest.raises(SystemCheckError, match=r"pgqueue\.W002"):
        run_check("--deploy", "--fail-level", "WARNING")


@pytest.mark.parametrize("deploy", [(), ("--deploy",)])
@override_settings(PGQUEUE={"NOTFY": True})
def test_check_command_invalid_setting_fails_with_one_error(deploy):
    """The other checks report nothing while the settings are invalid."""
    with pytest.raises(SystemCheckError) as error:
        run_check(*deploy)
    assert set(re.findall(r"pgqueue\.\w+", str(error.value))) == {"pgqueue.E001"}


@pytest.mark.parametrize("command", ["migrate", "runworker"])
@override_settings(PGQUEUE={"NOTFY": True})
@pytest.mark.django_db
def test_commands_of_the_page_stop_at_an_error(command):
    with pytest.raises(SystemCheckError, match=r"pgqueue\.E001"):
        call_command(command, skip_checks=False)


@override_settings(PGQUEUE={"IMMEDIATE": True})
@pytest.mark.django_db
def test_migrate_does_not_report_what_is_for_deploy_only():
    output = StringIO()
    call_command("migrate", skip_checks=False, plan=True, stdout=output, stderr=output)
    assert "pgqueue.W002" not in output.getvalue()


def test_checks_page_names_the_checks_for_deploy_only():
    own = [check for check in registry.registry.deployment_checks if check.__module__.startswith("django_pgqueue")]
    ids = {found for check in own for found in re.findall(r"pgqueue\.(\w+)", check.__doc__ or "")}
    [sentence] = re.findall(r"([^.]*) (?:is|are) part of `check --deploy` only", PAGES["docs/reference/checks.md"])
    assert set(re.findall(r"`(\w+)`", sentence)) == ids == {"W002", "W004"}
