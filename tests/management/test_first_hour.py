"""What a new user meets: no subcommand, no migrations, and a setting whose name is misspelled."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from django_pgqueue.doctor import Level, examine
from django_pgqueue.management.commands.pgqueue import SUBCOMMANDS
from django_pgqueue.settings import conf


@pytest.fixture
def no_tables(db: None) -> Iterator[None]:
    """The session sees a schema without tables, like a database that was not migrated."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA nothing")
            cursor.execute("SET LOCAL search_path TO nothing")
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize("words", [(), ("jobs",)])
def test_pgqueue_without_a_subcommand_lists_them_and_exits_with_2(words):
    with pytest.raises(CommandError, match="Pass one of these commands") as caught:
        call_command("pgqueue", *words)
    assert caught.value.returncode == 2
    listed = next(each for each in SUBCOMMANDS if each.name == "jobs").actions if words else SUBCOMMANDS
    for each in listed:
        assert any(line.split() == [each.name, *each.help.split()] for line in str(caught.value).splitlines())


@pytest.mark.parametrize("words", [("status",), ("jobs", "list"), ("queues",), ("why", "7"), ("clear", "mail")])
def test_commands_without_migrations_say_migrate(no_tables, words):
    with pytest.raises(CommandError, match=r"run `manage.py migrate`\. The server says: .*pgqueue_") as caught:
        call_command("pgqueue", *words, stdout=StringIO(), stderr=StringIO())
    assert caught.value.returncode == 1


def test_doctor_without_migrations_shows_that_first(no_tables):
    first, *others = examine()
    assert (first.id, first.level) == ("migrations", Level.ERROR)
    assert "missing tables and columns" in first.why and first.fix == "manage.py migrate"
    assert not [each.id for each in others if "does not exist" in each.what]
    blind = [each for each in others if "database does not have them" in each.what]
    assert len(blind) > 5
    assert {each.why for each in blind} == {"The tables must exist before this can be examined."}


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("PGQEUE", {"LEASE": 60}, "PGQUEUE = {…}"),
        ("PG_QUEUE", {"lease": 60}, "PGQUEUE = {…}"),
        ("DJANGO_PGQUEUE", {"LEASE": 60}, "PGQUEUE = {…}"),
        ("PGQUEUE_LEASE", 60, "PGQUEUE = {'LEASE': …}"),
        ("PGQUEUER", {"dsn": "postgres://"}, ""),
        ("PGQEUE", 60, ""),
        ("QUEUES_OF_MINE", {"LEASE": 60}, ""),
    ],
)
def test_misspelled_name_of_the_setting_is_reported(name, value, meant):
    assert conf.meant_setting(name, value) == meant
    with override_settings(**{name: value}):
        found = [each for each in run_checks() if each.id == "pgqueue.W005"]
    assert [(each.msg, each.hint) for each in found] == (
        [(f"The setting {name} has no effect.", f"Write {meant}.")] if meant else []
    )
