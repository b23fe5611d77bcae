"""The parts of the Python worker that talk to the server: what they do when it does not answer, or refuses."""

import time

import pytest

from django_pgqueue.contrib.remote.client import RemoteClient, RemoteError
from django_pgqueue.contrib.remote.remote_reports import Reports
from django_pgqueue.contrib.remote.remote_services import Claims, Extensions, RemoteLeases, RemoteOptions
from django_pgqueue.ground.endings import Ending
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots.inflight import InFlight

EXECUTION = {
    "execution": "handle",
    "job_id": 1,
    "execution_id": 7,
    "task": "a",
    "queue": "default",
    "priority": 0,
    "attempt": 1,
    "max_attempts": 3,
    "crashes": 0,
    "isolated": False,
    "args": [],
    "kwargs": {},
    "headers": {},
    "run_after": "2026-01-01T00:00:00+00:00",
    "start_within_seconds": None,
}


class Server:
    """A client whose answers the test chooses. It records the requests."""

    def __init__(self):
        self.answers, self.requests = {}, []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.requests.append((name, args, kwargs))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def leases():
    leases = RemoteLeases(ProcessState(4))
    leases.begin({"worker": "w", "lease_seconds": 8.0, "extend_seconds": 2.0, "max_batch": 100})
    return leases


def make_claims(server, leases):
    in_flight, submitted = InFlight(2), []
    claims = Claims(server, RemoteOptions(wait_seconds=20.0), leases, in_flight, submitted.extend, submitted.append)
    return claims, submitted


def make_extensions(server, leases):
    interrupted, asked = [], []
    extensions = Extensions(server, leases, interrupted.extend, asked.extend)
    return extensions, interrupted, asked


def test_claim_waits_no_longer_than_leases_allow(server, leases):
    server.answers["claim"] = [EXECUTION]
    claims, [] = make_claims(server, leases)
    claims.send()
    [(_, _, request)] = server.requests
    assert (request["limit"], request["wait_seconds"]) == (2, 2.0)
    assert leases.handles == {7: "handle"}
    assert 7 < leases.left_seconds <= 8


def test_claim_that_ends_after_stop_releases_jobs(server, leases):
    server.answers["claim"] = [EXECUTION]
    claims, submitted = make_claims(server, leases)
    claims.stop()
    claims.send()
    [report] = submitted
    assert (report.claimed.execution_id, report.ending) == (7, Ending.RELEASED)


def test_extension_reports_lost_and_cancelled_executions(server, leases):
    extensions, interrupted, asked = make_extensions(server, leases)
    leases.handles = {1: "a", 2: "b", 3: "c"}
    server.answers["extend"] = [{"result": "done"}, {"result": "lost"}, {"result": "done", "cancel_requested": True}]
    extensions.send()
    assert (interrupted, asked) == ([2], [3])
    assert leases.left_seconds > 7


def test_extension_without_answer_keeps_old_lease_and_tries_again(server, leases):
    extensions, interrupted, _ = make_extensions(server, leases)
    leases.handles = {1: "a"}
    before = leases.left_seconds
    server.answers["extend"] = RemoteError("no answer")
    with pytest.raises(RemoteError):
        extensions.send()
    assert leases.left_seconds <= before
    server.answers["extend"] = [{"result": "done"}]
    extensions.send()
    assert leases.left_seconds > 7
    assert interrupted == []


@pytest.mark.promise("remote-result-is-kept-until-written")
def test_report_is_kept_until_server_answers(server, leases):
    claims, submitted = make_claims(server, leases)
    server.answers["claim"] = [EXECUTION]
    claims.send()
    reports = Reports(server, leases, "default")
    now = time.monotonic()
    reports.hand_over(Report(submitted[0], Ending.SUCCEEDED, now, now, result="3"))
    server.answers["complete"] = RemoteError("no answer")
    with pytest.raises(RemoteError):
        reports.send()
    server.answers["complete"] = [{"result": "locked"}]
    reports.send()
    assert (len(reports), leases.handles) == (1, {7: "handle"})
    server.answers["complete"] = [{"result": "already"}]
    reports.send()
    assert (len(reports), leases.handles) == (0, {})
    assert server.requests[-1][1] == ([{"execution": "handle", "result": 3}],)


@pytest.mark.parametrize(("status", "is_temporary"), [(0, True), (429, True), (503, True), (401, False), (403, False)])
def test_refusal_stops_worker_and_outage_does_not(server, leases, status, is_temporary):
    claims, _ = make_claims(server, leases)
    server.answers["claim"] = RemoteError("refused", status, retry_after_seconds=0.01)
    claims._pause_seconds = 0.01
    claims.tick()
    assert (claims.refusal is None) == is_temporary


@pytest.mark.parametrize(
    "url", ["http://example.com/", "ftp://example.com/", "example.com", "http://127.0.0.1.evil.com/"]
)
def test_client_refuses_url_that_would_leak_token(url):
    with pytest.raises(ValueError, match="https"):
        RemoteClient(url, "token")
