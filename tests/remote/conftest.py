"""Fixtures for the tests of remote workers: a machine that talks to the views of this process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from django_pgqueue.contrib.remote.engine import close_engines
from django_pgqueue.contrib.remote.machine_tokens import create_token, rates, registrations
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.models import Job

from . import description


class Machine:
    """A machine with a token. It calls the addresses of the interface with JSON, as `curl` would."""

    def __init__(self, secret: str, place: str = "remote") -> None:
        self.secret = secret
        self.place = place
        self.handle = ""
        self._client = Client()

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        response = self._client.post(
            f"/{self.place}/v1/{path}",
            body if isinstance(body, bytes) else json.dumps(body),
            content_type=headers.pop("content_type", "application/json"),
            headers={"Authorization": f"Bearer {self.secret}"} | headers,
        )
        status, answer = response.status_code, json.loads(response.content)
        description.check(path, body, status, answer)
        return status, answer

    def register(self, **body: Any) -> "Machine":
        status, answer = self.post("workers", {"name": "machine"} | body)
        assert status == 201, answer
        self.handle = answer["worker"]
        return self

    def claim(self, limit: int = 10, **body: Any) -> list[dict[str, Any]]:
        status, answer = self.post("claim", {"worker": self.handle, "limit": limit} | body)
        assert status == 200, answer
        executions: list[dict[str, Any]] = answer["executions"]
        return executions

    def end(self, path: str, *executions: dict[str, Any], **more: Any) -> tuple[int, list[str]]:
        """Return the status and a word for each execution."""
        body = {"executions": [{"execution": each["execution"]} | more for each in executions]}
        status, answer = self.post(path, body)
        assert "executions" in answer, answer
        return status, [each["result"] for each in answer["executions"]]


def state_of(job: Job) -> str:
    """Return the present state of a job."""
    job.refresh_from_db()
    return job.state


@pytest.fixture
def token(engine: EngineConnection, settings: Any) -> Iterator[Callable[..., str]]:
    """Return a function that creates a token and returns its secret."""
    settings.ROOT_URLCONF = "tests.remote.urls"
    settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
    engine.execute("DELETE FROM pgqueue_remote_token")
    names = iter(range(1000))
    yield lambda **options: create_token(engine, f"token {next(names)}", **options)
    close_engines()
    rates._buckets.clear()
    registrations._buckets.clear()
    engine.execute("DELETE FROM pgqueue_remote_token")


@pytest.fixture
def machine(token: Callable[..., str]) -> Callable[..., Machine]:
    """Return a function that returns a registered machine with a new token. It takes the options of the token."""
    return lambda **options: Machine(token(**options)).register()
