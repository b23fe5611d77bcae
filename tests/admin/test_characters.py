"""Requests to every URL of the admin with NUL, which PostgreSQL cannot store, in each parameter that a view reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client
from django.utils.datastructures import MultiValueDict

from django_pgqueue.models import Job
from tests.admin.test_acts import CASES, Case, each_act, form_of, ids, root  # noqa: F401 -- fixtures
from tests.admin.test_every_url import ACTIONS, ADMINS, jobs, list_of, urls  # noqa: F401 -- a fixture

pytestmark = pytest.mark.slow

NUL = "a\0b"
ALWAYS = ("q", "p", "o", "e", "all", "_changelist_filters", "_popup", "_to_field", "id", "id__in", "pk__in")
"""Parameters of Django's own views, some of which it reads only in part of its pages."""
CONDITIONS = {list_of(model): {field.name for field in model._meta.fields} | {"origin"} for model in ADMINS}
"""Parameters of the lists that can be conditions on rows. A list takes all of them from the URL at once."""


@contextmanager
def names_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Collect the names of the parameters that views ask for."""
    found: set[str] = set()
    with monkeypatch.context() as patch:
        for method in ("__getitem__", "__contains__", "get", "getlist"):

            def spy(
                self: Any, name: Any, *args: Any, _own: Any = getattr(MultiValueDict, method), **options: Any
            ) -> Any:
                if isinstance(self, QueryDict):
                    found.add(str(name))
                return _own(self, name, *args, **options)

            patch.setattr(QueryDict, method, spy, raising=False)
        yield found


def refused(client: Client, method: str, url: str, data: dict[str, Any]) -> str:
    answer = getattr(client, method)(url, data)
    return f"{method} {url} {data!r}" if answer.status_code >= 500 else ""


@pytest.fixture
def anna(db: None) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("anna"))
    return client


@pytest.mark.parametrize("method", ["get", "post"])
def test_every_url_answers_nul_in_each_parameter(
    anna: Client,
    jobs: list[Job],
    method: str,
    monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    found, tried = [], 0
    for url in urls(jobs[0]):
        with names_read(monkeypatch) as names:
            getattr(anna, method)(url, {"post": "yes"})
        for name in sorted(names | set(ALWAYS) | CONDITIONS.get(url, set())):
            tried += 1
            found.append(refused(anna, method, url, {name: NUL}))
    assert [each for each in found if each] == []
    assert tried > 500


def test_every_action_answers_nul_in_the_selection(anna: Client, jobs: list[Job]) -> None:  # noqa: F811
    posted = [{"action": name, "_selected_action": NUL, "post": "yes", "confirmed": "1"} for _model, name in ACTIONS]
    answers = [refused(anna, "post", list_of(model), given) for (model, _), given in zip(ACTIONS, posted, strict=True)]
    assert [each for each in answers if each] == []


@each_act
def test_act_answers_nul_in_each_field(
    anna: Client,
    root: Client,
    ids: dict[str, int],
    case: Case,
    monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    case.prepare()
    url, fields = form_of(root, case, ids)
    with names_read(monkeypatch) as names:
        anna.post(f"{url}", {**fields, "form_token": ""})
    found = [refused(anna, "post", url, {**fields, name: NUL}) for name in {*fields, *names}]
    assert [each for each in found if each] == []
