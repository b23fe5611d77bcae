"""Fixtures with the roles of docs/production/security.md.

The roles are made from the text of that page, on a database that `queue_owner` has migrated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from django_pgqueue.composed import event_sending
from django_pgqueue.db.engine_connection import EngineConnection
from tests import helpers
from tests.process.conftest import start as start
from tests.process.harness import DATABASE_KEYS, Worker, django

DOCUMENT = Path(__file__).parents[2] / "docs/production/security.md"
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r"\bqueue_(owner|enqueuer|sender|worker|viewer|operator|scheduler|archivist)\b")
GROUPS = ("owner", "enqueuer", "sender", "worker", "viewer", "operator", "scheduler", "archivist")
APPLICATION = ("auth_user", "auth_group", "auth_permission", "django_content_type", "django_session")
PASSWORD = "made-up"


def block_after(words: str) -> str:
    """Return the first block of SQL that follows these words of the page."""
    page = DOCUMENT.read_text()
    block = BLOCK.search(page, page.index(words))
    assert block is not None
    return block[1]


def grants_after(words: str) -> list[str]:
    """Return the statements of the first block of SQL that follows these words of the page."""
    return block_after(words).strip().split(";\n")


@contextmanager
def granted(superuser: EngineConnection, grants: Iterable[str], *users: str) -> Iterator[None]:
    """Run grants of the page that are meant for `web`, or the name of a group, for these users. Revoke them later."""
    given = [grant.removesuffix(";").removesuffix(" TO web").removeprefix("GRANT ") for grant in grants]
    for grant in given:
        superuser.execute(f"GRANT {grant} TO {', '.join(users)}")
    try:
        yield
    finally:
        for grant in given:
            superuser.execute(f"REVOKE {grant} FROM {', '.join(users)}")


class Roles:
    """A database with the roles of the page.

    Roles belong to the whole server, so their names begin with the name of this database. For each of `GROUPS` there is
    a user who is a member of that group only.
    """

    def __init__(self, database: str) -> None:
        self.database = database
        before, after, of_remote_workers = (
            ROLE.sub(lambda role: self.group(role[1]), block_after(words))
            for words in ("**Step 1.**", "**Step 3.**", "run this too in step 3")
        )
        self.before_migrating, self.after_migrating = before, after + of_remote_workers

    def group(self, name: str) -> str:
        return f"{self.database}_{name}"

    def user(self, name: str) -> str:
        return f"{self.database}_user_{name}"

    def as_user(self, name: str) -> dict[str, Any]:
        """Return the settings of one of the users that differ from the settings of the tests' own connection."""
        return {"NAME": self.database, "USER": self.user(name), "PASSWORD": PASSWORD}

    def make(self) -> None:
        with connect_with_long_timeout() as server:
            server.execute(f"CREATE DATABASE {self.database}")
        with changed_default_database({"NAME": self.database}), closing(helpers.connect()) as superuser:
            superuser.execute(self.before_migrating)
            for name in GROUPS:
                superuser.execute(f"CREATE ROLE {self.user(name)} LOGIN PASSWORD '{PASSWORD}'")
                superuser.execute(f"GRANT {self.group(name)} TO {self.user(name)}")
            with changed_default_database(self.as_user("owner")):
                owner = {key: connection.settings_dict[key] for key in DATABASE_KEYS}
                django("migrate", "-v0", database=owner | {"OPTIONS": {"assume_role": self.group("owner")}})
            for _ in range(2):  # the page says to run it again after a later migration
                superuser.execute(self.after_migrating)
            users = ", ".join(self.user(name) for name in GROUPS)
            superuser.execute(f"GRANT ALL ON {', '.join(APPLICATION)}, django_admin_log TO {users}")

    def remove(self) -> None:
        with connect_with_long_timeout() as server:
            server.execute(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            for name in GROUPS:
                server.execute(f"DROP ROLE IF EXISTS {self.user(name)}")
            for name in GROUPS:
                server.execute(f"DROP ROLE IF EXISTS {self.group(name)}")


@contextmanager
def connect_with_long_timeout() -> Iterator[EngineConnection]:
    """Open a connection with a long timeout.

    Dropping a database causes a checkpoint, which writes everything that the tests before have changed.
    """
    with closing(helpers.connect()) as server:
        server.statement_timeout_seconds = 100.0
        server.execute("SET statement_timeout = 0")  # the server's own limit is 31 s
        yield server


@contextmanager
def changed_default_database(changes: dict[str, Any]) -> Iterator[None]:
    """Change the settings of the default alias.

    This affects Django's connection, engine connections, and the workers that a test starts.
    """
    before = connections["default"]
    before.ensure_connection()  # the address of an embedded server is known only after this
    settings = before.settings_dict | {"ENGINE": "django.db.backends.postgresql"} | changes
    connections["default"] = DatabaseWrapper(settings, "default")
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = before


@pytest.fixture(scope="module")
def made_roles(django_db_setup: None, django_db_blocker: Any) -> Iterator[Roles]:
    roles = Roles(f"test_{connection.settings_dict['NAME'].removeprefix('test_')}_roles")
    with django_db_blocker.unblock():
        with closing(helpers.connect()) as server:
            if not helpers.scalar(server, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
                pytest.skip("making roles and databases needs a superuser in DATABASE_URL")
        roles.remove()
        try:
            roles.make()
            yield roles
        finally:
            roles.remove()


@pytest.fixture
def superuser(made_roles: Roles, django_db_blocker: Any) -> Iterator[EngineConnection]:
    """A superuser's connection to the database of the roles, with empty tables."""
    with django_db_blocker.unblock():
        with changed_default_database({"NAME": made_roles.database}):
            connected = helpers.connect()
        with closing(connected):
            helpers.empty_tables(connected)
            connected.execute("DELETE FROM auth_group")
            connected.execute("DELETE FROM pgqueue_remote_token")
            yield connected


@pytest.fixture
def as_role(superuser: EngineConnection, made_roles: Roles, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that lets Django, engine connections and workers log in as a member of one role only."""
    monkeypatch.setattr(event_sending, "_left_to_workers", set())
    return lambda name: changed_default_database(made_roles.as_user(name))


@pytest.fixture
def refusals(as_role: Callable[[str], Any]) -> Callable[[str, Iterable[str]], dict[str, str | None]]:
    """Return a function that runs statements as a role.

    It returns the SQLSTATE with which each statement is refused, or None if the statement succeeds.
    """

    def run(role: str, statements: Iterable[str]) -> dict[str, str | None]:
        with as_role(role), closing(helpers.connect()) as session:
            return {statement: sqlstate(session, statement) for statement in statements}

    return run


def sqlstate(session: EngineConnection, statement: str) -> str | None:
    with helpers.transaction(session):
        try:
            session.execute(statement)
        except psycopg.Error as error:
            return error.sqlstate
    return None


@pytest.fixture
def start_as(as_role: Callable[[str], Any], tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts a worker that logs in as a role."""
    workers: list[Worker] = []

    def start(role: str, *arguments: str, **options: Any) -> Worker:
        with as_role(role):
            workers.append(Worker(tmp_path / "worker.log", *arguments, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
