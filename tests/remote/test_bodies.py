"""Bodies of requests: how large they may be, and that none is read before the token is checked."""

import asyncio
import json

import pytest
from django.core.handlers.asgi import ASGIHandler

from django_pgqueue.contrib.remote import asgi, bodies, client, endpoint
from django_pgqueue.contrib.remote.asgi import check_first
from django_pgqueue.contrib.remote.client import RemoteClient, RemoteError
from django_pgqueue.contrib.remote.endpoint import admitted
from django_pgqueue.contrib.remote.job_json import claimed_job
from django_pgqueue.contrib.remote.problems import Problem
from django_pgqueue.contrib.remote.remote_reports import Reports
from django_pgqueue.contrib.remote.remote_services import RemoteLeases
from django_pgqueue.ground.endings import Ending
from django_pgqueue.models import Execution
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from tests.app import tasks

from .conftest import state_of
from .test_client import EXECUTION

# ------------------------------------------------------------------ size and number of values


@pytest.mark.promise("remote-bodies-bounded")
def test_body_too_large_gets_413(machine):
    status, answer = machine().post("claim", b" " * bodies.max_body_bytes() + b"{}")
    assert (status, answer["code"]) == (413, "too_large")
    assert "send fewer executions" in answer["detail"]


@pytest.mark.promise("remote-bodies-bounded")
@pytest.mark.parametrize("values", [b"[],", b"{},", b"[", b"1,"])
def test_body_with_too_many_values_is_not_parsed(machine, monkeypatch, values):
    monkeypatch.setattr(json, "loads", None)
    body = values * ((bodies.max_body_bytes() - 1) // len(values))
    with pytest.raises(Problem, match="values: send fewer executions"):
        bodies.parsed(body)


@pytest.mark.parametrize("filler", ["x", ",", "[", "é", "\N{GRINNING FACE}", "1,"])
def test_largest_result_fits_into_a_request(machine, filler):
    """Whatever it consists of, also if the machine escapes all characters."""
    room = get_settings().MAX_RESULT_BYTES - 4
    result = [1] * (room // 2) if filler == "1," else filler * (room // len(filler.encode()))
    job, one = tasks.add.enqueue(1), machine()
    assert one.end("complete", *one.claim(), result=result) == (200, ["done"])
    job.refresh_from_db()
    assert job.result == result


def test_extension_of_a_whole_batch_fits_into_a_request(machine):
    name = "n" * 100
    tasks.add.using(queue_name=name).enqueue_many([(number,) for number in range(100)])
    one = machine(queue_names=[name])
    executions = one.claim(100)
    assert len(executions) == 100
    body = {"worker": one.handle, "executions": [{"execution": each["execution"]} for each in executions]}
    assert len(json.dumps(body)) < bodies.OVERHEAD_BYTES
    assert one.post("extend", body)[0] == 200


# ------------------------------------------------------------------ clients


class Wire(RemoteClient):
    """A client whose requests a function answers. It records the operations and the sizes of the requests."""

    def __init__(self, answer):
        super().__init__("http://127.0.0.1/", "token")
        self._answer_of, self.sizes = answer, []

    def _post(self, path, body, wait_seconds=None):
        self.sizes.append(len(json.dumps(body)))
        return self._answer_of(path, body)


def done(path, body):
    return {"executions": [{"execution": each["execution"], "result": "done"} for each in body["executions"]]}


def refusing(is_refused):
    """Return an answer that refuses requests with too many values."""

    def answer(path, body):
        if is_refused(path, body["executions"]):
            raise RemoteError("too large", 413)
        return done(path, body)

    return answer


def items(count, characters):
    return [{"execution": f"handle {number}", "result": "x" * characters} for number in range(count)]


def test_client_divides_items_by_their_size():
    wire = Wire(done)
    wire._max_body_bytes = 50_000
    assert [each["execution"] for each in wire.complete(items(40, 5000))] == [f"handle {n}" for n in range(40)]
    assert len(wire.sizes) == 5
    assert max(wire.sizes) < 50_000


def test_client_divides_a_request_that_the_server_refuses():
    wire = Wire(refusing(lambda path, given: len(given) > 3))
    assert [each["result"] for each in wire.complete(items(10, 10))] == ["done"] * 10


def test_client_measures_characters_without_escapes():
    wire = Wire(done)
    assert [each["result"] for each in wire.complete([{"execution": "one", "result": "\x7f" * 60_000}])] == ["done"]
    assert len(client._encoded({"result": "\x7f" * 60_000})) < 60_100
    assert client._encoded("\ud800") == b'"\\ud800"'


def test_reports_of_answered_requests_are_not_sent_again():
    """The second request of a batch of reports fails, for example because the token made too many requests."""
    sent = []

    def answer(path, body):
        sent.append([each["execution"] for each in body["executions"]])
        if len(sent) == 2:
            raise RemoteError("too many requests", 429)
        return done(path, body)

    leases = RemoteLeases(ProcessState(3))
    leases.handles = {1: "first", 2: "second", 3: "third"}
    wire = Wire(answer)
    wire._max_body_bytes = 30_000
    reports = Reports(wire, leases, "default")
    for execution_id in leases.handles:
        claimed = claimed_job({**EXECUTION, "execution_id": execution_id})
        reports.hand_over(Report(claimed, Ending.SUCCEEDED, 0.0, 1.0, result=json.dumps("x" * 20_000)))
    while len(reports):
        reports.send()
    assert sent == [["first"], ["second"], ["second"], ["third"]]


def test_failure_that_is_too_large_is_reported_without_its_traceback():
    written = []

    def answer(path, body):
        if len(json.dumps(body)) > 10_000:
            raise RemoteError("too large", 413)
        written.append((path, body["executions"][0]["error"]))
        return done(path, body)

    leases = RemoteLeases(ProcessState(1))
    leases.handles = {1: "first"}
    reports = Reports(Wire(answer), leases, "default")
    claimed = claimed_job({**EXECUTION, "execution_id": 1})
    reports.hand_over(Report(claimed, Ending.FAILED, 0.0, 1.0, error="e" * 20_000, traceback="t" * 20_000))
    while len(reports):
        reports.send()
    assert written == [("fail", "e" * 1000)]


@pytest.mark.promise("remote-result-is-kept-until-written")
def test_report_that_is_too_large_becomes_a_failure():
    """The other report of the same request is written, and neither is sent again for ever."""
    written = []

    def answer(path, body):
        if path == "complete" and any(each["result"] == "large" for each in body["executions"]):
            raise RemoteError("too large", 413)
        written.append((path, [each["execution"] for each in body["executions"]]))
        return done(path, body)

    leases = RemoteLeases(ProcessState(2))
    leases.handles = {1: "first", 2: "second"}
    reports = Reports(Wire(answer), leases, "default")
    for execution_id, result in ((1, '"large"'), (2, '"small"')):
        claimed = claimed_job({**EXECUTION, "execution_id": execution_id})
        reports.hand_over(Report(claimed, Ending.SUCCEEDED, 0.0, 1.0, result=result))
    while len(reports):
        reports.send()
    assert written == [("complete", ["second"]), ("fail", ["first"])]


# ------------------------------------------------------------------ ASGI


class Sender:
    """An ASGI server's side of one request. It counts the parts of the body that the application has read."""

    def __init__(self, path, body=b"{}", secret="", method="POST", part_bytes=65536, **headers):
        headers = {"host": "testserver", "content-type": "application/json", "content-length": str(len(body))} | headers
        if secret:
            headers["authorization"] = f"Bearer {secret}"
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items() if value],
        }
        self._parts = [body[start : start + part_bytes] for start in range(0, len(body), part_bytes)]
        self.read, self.sent = 0, []

    async def receive(self):
        if self.read == len(self._parts):
            await asyncio.Event().wait()  # the client waits for the answer
        self.read += 1
        return {
            "type": "http.request",
            "body": self._parts[self.read - 1],
            "more_body": self.read < len(self._parts),
        }

    async def send(self, message):
        self.sent.append(message)

    def call(self, application):
        asyncio.run(asyncio.wait_for(application(self.scope, self.receive, self.send), 20))
        [start, *parts] = self.sent
        return start["status"], json.loads(b"".join(part["body"] for part in parts))


@pytest.fixture
def application(token):  # after the token's fixture, which sets the middleware
    return check_first(ASGIHandler())


@pytest.mark.promise("remote-bodies-bounded")
@pytest.mark.parametrize("secret", ["", "pgq_wrong", "other"])
def test_asgi_request_without_valid_token_is_refused_unread(application, machine, secret):
    sender = Sender("/remote/v1/claim", b"x" * 10_000_000, secret)
    status, answer = sender.call(application)
    assert (status, answer["code"], sender.read) == (401, "unauthorized", 0)


@pytest.mark.promise("remote-bodies-bounded")
def test_asgi_body_beyond_the_limit_is_refused_early(application, token):
    secret, body = token(), b" " * 10_000_000
    stated = Sender("/remote/v1/claim", body, secret)
    assert (stated.call(application)[0], stated.read) == (413, 0)
    chunked = Sender("/remote/v1/claim", body, secret, **{"content-length": ""})
    assert chunked.call(application)[0] == 413
    assert chunked.read <= bodies.max_body_bytes() // 65536 + 1


def test_asgi_request_reaches_the_view_with_its_whole_body(application, token):
    secret = token()
    body = json.dumps({"name": "vm", "queues": ["q" * 90] * 100}).encode()
    status, answer = Sender("/remote/v1/workers", body, secret, part_bytes=100).call(application)
    assert (status, answer["max_body_bytes"]) == (201, bodies.max_body_bytes())


def test_asgi_request_counts_once_for_the_rate(application, token):
    secret = token(requests_per_minute=60)  # a bucket holds ten of them
    statuses = [Sender("/remote/v1/claim", b"[]", secret).call(application)[0] for _ in range(12)]
    assert statuses == [400] * 11 + [429]


def test_asgi_caller_counts_for_the_database_of_its_token_only(application, token, monkeypatch):
    """The project can choose the database after the wrapper, for example in a middleware."""
    secret = token()
    aliases = iter(["other", "default", "default"])
    monkeypatch.setattr(asgi, "token_alias", lambda database: next(aliases))
    asked = []
    monkeypatch.setattr(endpoint, "admitted", lambda *given: asked.append(given) or admitted(*given))
    statuses = [Sender("/remote/v1/claim", b"[]", secret).call(application)[0] for _ in range(2)]
    assert (statuses, len(asked)) == ([400, 400], 1)


def test_asgi_client_that_goes_away_gets_no_answer_of_a_view(application, token):
    sender = Sender("/remote/v1/claim", b"{}", token())

    async def gone():
        return {"type": "http.disconnect"}

    sender.receive = gone
    assert sender.call(application)[0] == 503


@pytest.mark.parametrize(("path", "status"), [("claim", 405), ("openapi.json", 200), ("nothing", 404)])
def test_asgi_other_requests_are_answered_as_before(application, token, path, status):
    token()
    sender = Sender(f"/remote/v1/{path}", b"x", method="GET")
    asyncio.run(application(sender.scope, sender.receive, sender.send))
    assert sender.sent[0]["status"] == status


def test_asgi_other_paths_and_scopes_reach_the_application(token):
    token()
    seen = []

    async def application(*given):
        seen.append(given)

    scopes = [{"type": "lifespan"}, Sender("/elsewhere/v1/claim").scope, Sender("/").scope, Sender("/\udc80").scope]
    for scope in scopes:
        asyncio.run(check_first(application)(scope, None, None))
    assert seen == [(scope, None, None) for scope in scopes]


def test_largest_dead_letter_of_a_refused_report(machine):
    """A result that the server's codec makes too large is a dead letter, not an answer that a machine repeats."""
    job, one = tasks.add.enqueue(1), machine()
    assert one.end("complete", *one.claim(), result="x" * get_settings().MAX_RESULT_BYTES) == (200, ["done"])
    assert state_of(job) == "dead"
    assert "cannot be stored" in Execution.objects.get(job_id=job.pk).error
