"""A gate that a statement waits at after it took its snapshot: what commits meanwhile, its locks find changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests import helpers
from tests.statements import STATEMENTS, replace_statement

GATE = 4711


class Gates:
    """`with gates("CLAIM", connection, call) as waiting:` runs `call()` up to its gate, and on when the block ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watcher) -> None:
        self.monkeypatch = monkeypatch
        self.watcher = watcher

    @contextmanager
    def __call__(
        self, statement: str, connection, call: Callable[[], object], *, must_wait: bool = True
    ) -> Iterator[helpers.Background]:
        """Unless it `must_wait`, the call may find no row to look at, and be over without having met the gate."""
        text = STATEMENTS[statement]
        target = "FROM unnest("
        assert target in text
        gated = text.replace(target, f"FROM (SELECT pg_advisory_xact_lock_shared({GATE})) AS gate, {target[5:]}", 1)
        replace_statement(self.monkeypatch, statement, gated)
        self.watcher.execute("SELECT pg_advisory_lock(%s)", [GATE])
        waiting = helpers.Background(call)
        try:
            pid = connection.info.backend_pid
            helpers.wait_until(
                lambda: helpers.waits_for_lock(self.watcher, pid) or not (must_wait or waiting.thread.is_alive())
            )
            replace_statement(self.monkeypatch, statement, text)
            yield waiting
        finally:
            replace_statement(self.monkeypatch, statement, text)
            self.watcher.execute("SELECT pg_advisory_unlock(%s)", [GATE])
            waiting.thread.join(30)


@pytest.fixture
def gates(monkeypatch, watcher) -> Gates:
    return Gates(monkeypatch, watcher)


@pytest.fixture
def impatient(engine):
    """The engine connection, with an error for any wait for a lock."""
    engine.execute("SET lock_timeout = '1s'")
    return engine
