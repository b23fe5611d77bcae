"""Find the parameters that a view reads, and send NUL in each of them: PostgreSQL cannot store it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils.datastructures import MultiValueDict

NUL = "a\0b"


@contextmanager
def names_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Collect the names of the parameters that views ask for."""
    found: set[str] = set()

    def spy(method: str) -> Any:
        def read(self: QueryDict, name: Any, *args: Any, **options: Any) -> Any:
            found.add(str(name))
            return getattr(MultiValueDict, method)(self, name, *args, **options)

        return read

    with monkeypatch.context() as patch:
        for method in ("__getitem__", "__contains__", "get", "getlist"):
            patch.setattr(QueryDict, method, spy(method), raising=False)
        yield found


def fails(client: Client, method: str, url: str, data: dict[str, Any]) -> str:
    """Return the request in words if it is answered with a status of 500 or more, otherwise ""."""
    client.raise_request_exception = False
    send = partial(client.get if method == "get" else client.post, url, data)
    return f"{method} {url} {data!r}" if send().status_code >= 500 else ""
