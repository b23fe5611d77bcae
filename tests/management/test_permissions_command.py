"""`pgqueue permissions`: the two ready groups follow from the code, and the command only adds."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError
from django.test import Client

from django_pgqueue import acts
from django_pgqueue.acts import ready_groups
from django_pgqueue.models import Job
from tests.documents import plain, table

PAGES = ("job/overview/", "job/queues/", "job/", "jobbatch/", "worker/", "schedule/", "pause/", "job/limits/")
SUPPORT, OPERATOR = "pgqueue support", "pgqueue operator"


def held(name: str) -> set[str]:
    """Return the codenames of a group's permissions of the app."""
    rows = Permission.objects.filter(group__name=name, content_type__app_label="pgqueue")
    return set(rows.values_list("codename", flat=True))


def user_in(name: str) -> User:
    user = User.objects.create_user(name.replace(" ", "_"), is_staff=True)
    user.groups.add(Group.objects.get(name=name))
    return user


def rows() -> tuple[Any, ...]:
    return tuple(Group.permissions.through.objects.order_by("pk").values_list()), tuple(Group.objects.values_list())


def test_each_permission_is_in_a_group_or_left_out_on_purpose(db):
    """A new permission of a model fails here until an act needs it, or `LEFT_OUT` says why nobody gets it."""
    support, operator = ready_groups.ready_groups()
    stored = set(Permission.objects.filter(content_type__app_label="pgqueue").values_list("codename", flat=True))
    assert ready_groups.declared().keys() == stored
    assert support.codenames < operator.codenames
    assert operator.codenames | ready_groups.LEFT_OUT.keys() == stored
    assert not operator.codenames & ready_groups.LEFT_OUT.keys()


def test_declared_permissions_have_the_names_that_migrate_stores(db):
    stored = Permission.objects.filter(content_type__app_label="pgqueue").values_list("codename", "name")
    assert ready_groups.declared() == dict(stored)


def test_support_only_views_and_operator_does_the_acts(pgqueue):
    pgqueue("permissions", "--create-groups")
    assert all(codename.startswith("view_") for codename in held(SUPPORT))
    assert not held(SUPPORT) & {"view_arguments", "view_stack"} and "view_job" in held(SUPPORT)
    operator, support = user_in(OPERATOR), user_in(SUPPORT)
    allowed = {act.label for act in acts.AUDITED.values() if act.is_allowed(operator)}
    left_out = {acts.EDIT_AND_RETRY, acts.ENQUEUE, acts.DELETE, acts.DELETE_SCHEDULE, acts.ERASE, acts.ARCHIVE}
    assert allowed == {act.label for act in acts.AUDITED.values() if act not in left_out}
    assert not [act for act in acts.AUDITED.values() if act.is_allowed(support)]


def test_support_reads_a_job_without_its_arguments(pgqueue):
    pgqueue("permissions", "--create-groups")
    job = Job.objects.create(task_name="app.pay", arguments={"args": ["secret card"], "kwargs": {}})
    for name, is_shown in ((SUPPORT, False), (OPERATOR, True)):
        client = Client()
        client.force_login(user_in(name))
        for path in (
            "job/overview/",
            "job/queues/",
            "job/",
            "jobbatch/",
            "worker/",
            "schedule/",
            "pause/",
            "job/limits/",
        ):
            assert client.get(f"/admin/pgqueue/{path}").status_code == 200, path
        # The task is unknown, so nobody reads its arguments: the words say which of the two reasons hides them.
        text = client.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
        assert ("you do not have the permission" not in text) == is_shown, name


def test_second_run_changes_nothing_and_says_so(pgqueue):
    first = pgqueue("permissions", "--create-groups").out
    assert f"Created the group '{SUPPORT}': " in first and f"Created the group '{OPERATOR}': " in first
    assert "In no group: pgqueue.delete_job, because what it deletes cannot be restored." in first
    before = rows()
    second = pgqueue("permissions", "--create-groups").out
    assert f"The group '{SUPPORT}' has all its permissions already." in second and "Created" not in second
    assert rows() == before


def test_permission_added_by_hand_stays_and_is_named(pgqueue):
    pgqueue("permissions", "--create-groups")
    group = Group.objects.get(name=SUPPORT)
    group.permissions.add(*Permission.objects.filter(codename__in=["retry_job", "view_user"]))
    group.permissions.remove(Permission.objects.get(codename="view_worker"))
    out = pgqueue("permissions", "--create-groups").out
    assert f"Added to the group '{SUPPORT}': view_worker." in out
    assert f"The group '{SUPPORT}' keeps what somebody else has given it: auth.view_user, retry_job." in out
    assert {"retry_job", "view_worker"} <= held(SUPPORT)
    assert group.permissions.filter(codename="view_user").exists()


def test_dry_run_changes_nothing(pgqueue):
    out = pgqueue("permissions", "--create-groups", "--dry-run").out
    assert f"Would create the group '{OPERATOR}': " in out and not Group.objects.exists()
    Group.objects.create(name=SUPPORT)
    assert f"Would add to the group '{SUPPORT}': " in pgqueue("permissions", "--create-groups", "--dry-run").out
    assert not held(SUPPORT)


def test_missing_permission_row_names_migrate(pgqueue):
    Permission.objects.filter(codename="retry_job").delete()
    with pytest.raises(CommandError, match=r"lacks the permissions retry_job: run `manage.py migrate` first"):
        pgqueue("permissions", "--create-groups")
    assert not Group.objects.exists()


@pytest.mark.parametrize("arguments", ["--dry-run", "--create-groups --json", "--create-groups --database x"])
def test_options_that_do_not_fit_are_refused(pgqueue, arguments):
    with pytest.raises(CommandError) as caught:
        pgqueue("permissions", *arguments.split())
    assert caught.value.returncode == 2 and not Group.objects.exists()


def test_list_shows_each_permission_with_its_groups(pgqueue):
    out = pgqueue("permissions").out
    assert "pgqueue.retry_job" in out and "none, because it lets a user run tasks with any arguments" in out
    listed = {each["permission"]: each for each in pgqueue("permissions", "--json").document["permissions"]}
    assert list(listed) == sorted(f"pgqueue.{codename}" for codename in ready_groups.declared())
    assert listed["pgqueue.view_job"]["groups"] == [SUPPORT, OPERATOR]
    assert listed["pgqueue.enqueue_job"]["left_out"] == ready_groups.RUNS_ANYTHING
    documented = [plain(row[0]) for row in table("docs/reference/cli.md", "key of a permission")]
    assert documented == list(listed["pgqueue.view_job"])


def test_docs_name_the_permissions_that_are_left_out():
    with open("docs/production/acting_on_jobs.md", encoding="utf-8") as page:
        section = page.read().partition("### Ready groups")[2].partition("###")[0]
    assert {name for name in ready_groups.declared() if f"`{name}`" in section} == ready_groups.LEFT_OUT.keys()
