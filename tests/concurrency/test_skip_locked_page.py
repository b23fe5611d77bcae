"""The demonstrations of docs/concepts/skip_locked.md give what the page shows, in two sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest

from tests import helpers
from tests.documents import blocks

PAGE = "docs/concepts/skip_locked.md"
SETUP, *DEMONSTRATIONS = blocks(PAGE, "psql")


class Line(NamedTuple):
    """A statement of one session, and the lines below it: rows, or that the session waits or goes on."""

    session: str
    statement: str
    shown: list[str]


def lines(block: str) -> Iterator[Line]:
    """Yield the statements of a transcript of psql. A line that begins with `a->` continues one of session a."""
    for part in re.split(r"^(?=[ab]=> )", block, flags=re.MULTILINE)[1:]:
        session = part[0]
        first, *others = part[4:].splitlines()
        statement = [first, *(line[4:] for line in others if line.startswith(f"{session}-> "))]
        yield Line(session, " ".join(statement), [line for line in others if not line.startswith(f"{session}-> ")])


def ids(connection: psycopg.Connection[Any], statement: str) -> list[str]:
    cursor = connection.execute(statement.encode())
    return [f" {row[0]}" for row in cursor.fetchall()] if cursor.description else []


def replay(block: str, sessions: dict[str, Any], watcher: Any) -> None:
    """Run a transcript, and compare each answer with the page."""
    waiting: helpers.Background | None = None
    for line in lines(block):
        connection = sessions[line.session]
        if line.shown == [f"({line.session} waits for a)"]:
            waiting = helpers.Background(partial(ids, connection, line.statement))
            helpers.wait_for_lock(watcher, connection.info.backend_pid)
            continue
        answer = ids(connection, line.statement)
        if line.shown[:1] == ["(b goes on)"]:
            assert waiting is not None
            answer, waiting = waiting.result(), None
        assert answer == [shown for shown in line.shown if shown != "(b goes on)"], line
    assert waiting is None, "a session still waits"


@pytest.fixture
def sessions(new_connection) -> Iterator[dict[str, Any]]:
    """Two sessions in which each statement commits by itself outside of a transaction, as in `psql`."""
    found = {"a": new_connection(), "b": new_connection()}
    yield found
    for connection in found.values():
        connection.execute("ROLLBACK")
    found["a"].execute("DROP TABLE IF EXISTS demo_job")


@pytest.mark.parametrize("number", range(len(DEMONSTRATIONS)))
def test_demonstration_gives_what_the_page_shows(sessions, watcher, number):
    replay(SETUP, sessions, watcher)
    replay(DEMONSTRATIONS[number], sessions, watcher)


def test_page_demonstrates_both_races_the_remedy_and_the_table_lock():
    assert len(DEMONSTRATIONS) == 5
    waits = [block.count("(b waits for a)") for block in DEMONSTRATIONS]
    assert waits == [0, 1, 1, 0, 1]
    assert [block.count("SKIP LOCKED") for block in DEMONSTRATIONS] == [0, 0, 0, 3, 1]


def test_wrong_answer_on_the_page_is_found(sessions, watcher):
    replay(SETUP, sessions, watcher)
    with pytest.raises(AssertionError):
        replay(DEMONSTRATIONS[3].replace("\n 2\n", "\n 1\n"), sessions, watcher)
