"""Bad requests change nothing and get a clear answer, and the description has what the interface has."""

from typing import Any

from django_pgqueue.contrib.remote import views
from django_pgqueue.contrib.remote.urls import urlpatterns
from tests.app import tasks

from .conftest import state_of
from .description import DESCRIPTION

BAD_REQUESTS: tuple[tuple[str, Any], ...] = (
    ("claim", b"{"),
    ("claim", b"[" * 50_000),
    ("claim", b'{"worker": NaN}'),
    ("claim", []),
    ("claim", {"worker": 7}),
    ("claim", {"worker": "HANDLE", "limit": 0}),
    ("claim", {"worker": "HANDLE", "limit": 101}),
    ("claim", {"worker": "HANDLE", "limit": True}),
    ("claim", {"worker": "HANDLE", "wait_seconds": 26}),
    ("claim", {"worker": "HANDLE", "queues": "default"}),
    ("claim", {"worker": "HANDLE", "queues": ["a\x00"]}),
    ("claim", {"worker": "HANDLE", "surprise": 1}),
    ("workers", {"name": ""}),
    ("workers", {"name": "x" * 101}),
    ("workers", {"name": "a", "pid": 2**31}),
    ("complete", {"executions": []}),
    ("complete", {"executions": [{"execution": "a"}] * 101}),
    ("complete", {"executions": [{"execution": ""}]}),
    ("complete", {"executions": [7]}),
    ("extend", {"worker": "HANDLE", "executions": [{"execution": "a", "progress": {"done": 10**400}}]}),
)


def test_bad_request_gets_400_with_problem(machine):
    one = machine()
    for path, body in BAD_REQUESTS:
        if isinstance(body, dict) and body.get("worker") == "HANDLE":
            body |= {"worker": one.handle}
        status, answer = one.post(path, body)
        assert (status, answer["code"]) == (400, "invalid"), body
        assert answer["detail"]


BAD_ENDINGS = (
    ("complete", {"result": "a\x00b"}),
    ("complete", {"result": "\ud800"}),
    ("fail", {"then": "later"}),
    ("fail", {"retry_in_seconds": -1}),
    ("fail", {"error": 7}),
    ("release", {"delay_seconds": 1e12}),
    ("release", {"unknown": "yes"}),
)


def test_bad_ending_gets_400_and_changes_nothing(machine):
    first, second, one = tasks.add.enqueue(1), tasks.add.enqueue(2), machine()
    good, bad = one.claim()
    for path, more in BAD_ENDINGS:
        body = {"executions": [{"execution": good["execution"]}, {"execution": bad["execution"]} | more]}
        assert one.post(path, body)[0] == 400, more
    assert (state_of(first), state_of(second)) == ("running", "running")


def test_description_has_each_address_and_is_served(client, token):
    served = client.get("/remote/v1/openapi.json").json()
    assert served == DESCRIPTION
    assert {f"/{pattern.pattern}" for pattern in urlpatterns} == {*served["paths"], "/v1/openapi.json"}
    assert client.post("/remote/v1/openapi.json").status_code == 405


def test_description_has_each_member_of_requests(machine):
    """A request with an unknown member is answered with the known ones."""
    one = machine()
    for path, described in DESCRIPTION["paths"].items():
        schema = described["post"]["requestBody"]["content"]["application/json"]["schema"]
        items = schema["properties"].get("executions", {}).get("items", {}).get("properties")
        bodies = [({"surprise": 1}, schema["properties"])]
        bodies += [] if items is None else [({"executions": [{"surprise": 1}]}, items)]
        for body, properties in bodies:
            more = {"worker": one.handle} if path == "/v1/extend" and "executions" in body else {}
            _, answer = one.post(path.removeprefix("/v1/"), body | more)
            members = answer["detail"].partition("the members are ")[2].split(", ")
            assert set(members) == set(properties), path


def test_wrong_method_and_type_are_refused(machine, client):
    assert client.get("/remote/v1/claim").status_code == 405
    assert machine().post("claim", b"{}", content_type="text/plain")[0] == 415


def test_views_need_no_csrf_token_and_no_transaction():
    for view in (views.workers, views.stop, views.claim, views.extend, views.complete, views.fail, views.release):
        assert view.csrf_exempt
        assert view._non_atomic_requests
