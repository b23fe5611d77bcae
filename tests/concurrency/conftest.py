"""Fixtures that stop a statement between its snapshot and its row locks.

A stopped statement waits at a gate, which is an advisory lock. Another connection commits its changes meanwhile, so the
statement finds the changed rows when it locks them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests import helpers
from tests.statements import STATEMENTS, replace_statement

GATE = 4711


def with_gate(text: str) -> str:
    """Return a statement that waits at the gate after it has taken its snapshot."""
    gate = f"(SELECT pg_advisory_xact_lock_shared({GATE})) AS gate"
    for target in ("FROM unnest(", "FROM pgqueue_worker WHERE"):
        if target in text:
            return text.replace(target, f"FROM {gate}, {target[5:]}", 1)
    raise AssertionError(f"no place for a gate: {text}")


class Gates:
    """Stop a statement at a gate while the block of a `with` statement runs.

    `with gates("CLAIM", connection, call) as waiting:` runs `call()` in a thread up to the gate. The call
    continues when the block ends.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watcher) -> None:
        self.monkeypatch = monkeypatch
        self.watcher = watcher

    @contextmanager
    def __call__(
        self, statement: str, connection, call: Callable[[], object], *, must_wait: bool = True
    ) -> Iterator[helpers.Background]:
        """Run `call()` up to the gate of its statement.

        If `must_wait` is false, the call may find no rows and return without reaching the gate.
        """
        text = STATEMENTS[statement]
        gated = with_gate(text)
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
    """Return the engine connection with a `lock_timeout` of 1 s, so that a wait for a lock raises an error."""
    engine.execute("SET lock_timeout = '1s'")
    return engine
