"""A library that keeps a mutable scope in a context variable, as Sentry's SDK does; and tasks that use it.

It sets a scope when a thread starts, and gives whoever has none a new one. Tasks that share a scope see each other's
users. Only a process whose environment asks for it installs the library.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async

from django_pgqueue import task

_scope: ContextVar[dict[str, Any] | None] = ContextVar("_scope", default=None)


def scope() -> dict[str, Any]:
    """Return the scope of this context, a new one if it has none."""
    found = _scope.get()
    if found is None:
        found = {}
        _scope.set(found)
    return found


def install() -> None:
    """Give each thread a scope when it starts, and this one too."""
    _scope.set({})
    plain = threading.Thread.start

    def start(self: threading.Thread) -> None:
        run = self.run

        def run_in_a_scope() -> None:
            _scope.set({})
            run()

        self.run = run_in_a_scope  # type: ignore[method-assign]  # what such a library does
        plain(self)

    threading.Thread.start = start  # type: ignore[method-assign]  # as above


if os.environ.get("PGQUEUE_TEST_SCOPES"):
    install()


def be(user: str) -> str | None:
    """Set this scope's user; return who was there before."""
    before: str | None = scope().get("user")
    scope()["user"] = user
    return before


@task
def set_user(user: str) -> str | None:
    return be(user)


@task
async def set_user_from_coroutine(user: str) -> list[str | None]:
    return [be(user), await sync_to_async(lambda: scope().get("before"))()]


@task(isolation="process")
def set_user_apart(user: str) -> str | None:
    return be(user)
