"""The complete workers in JavaScript and in a shell, as real processes: `example_project/remote/`."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from django_pgqueue.models import Execution, Job, Worker
from tests import helpers
from tests.app import tasks
from tests.documents import blocks

from .conftest import Machine
from .test_worker import TOP, url

__all__ = ["url"]
pytestmark = pytest.mark.process

SCRIPTS = TOP / "example_project" / "remote"
PROGRAMS = {"node": ["node"], "sh": ["sh", "curl", "jq"]}
NODE_TASKS = """
import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

async function wait({ args: [go, started], signal, note }) {
  note(1, 2, "waiting");
  writeFileSync(started, "");
  while (!existsSync(go)) {
    if (signal.aborted) {
      writeFileSync(go + ".stopped", signal.reason);
      signal.throwIfAborted();
    }
    await sleep(20);
  }
  return "waited";
}

const add = async ({ args, kwargs }) => args[0] + kwargs.b;
const fail = async () => {
  throw new Error("not today");
};
const bad = async () => "a\\0b";
export default { ADD: add, FAIL: fail, WAIT: wait, BAD: bad };
"""
NAMES = {
    "ADD": tasks.add.name,
    "FAIL": tasks.fail.name,
    "WAIT": tasks.wait_again.name,
    "BAD": tasks.noop.name,
}
SH_PROGRAMS = {
    "ADD": "jq '.args[0] + .kwargs.b'",
    "FAIL": "echo not today >&2; exit 3",
    "BAD": "printf '\"a\\\\u0000b\"'",
    "WAIT": """
input=$(cat)
go=$(printf %s "$input" | jq -r '.args[0]')
trap 'touch "$go.stopped"; exit 1' TERM
touch "$(printf %s "$input" | jq -r '.args[1]')"
while [ ! -e "$go" ]; do sleep 0.05; done
echo waited
""",
}


@pytest.fixture(params=["node", "sh"])
def kind(request):
    for program in PROGRAMS[request.param]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return request.param


def command_of(kind, name, tmp_path):
    if kind == "node":
        text = NODE_TASKS
        for word, task_name in NAMES.items():
            text = text.replace(f" {word}: ", f' "{task_name}": ')
        (tmp_path / "tasks.mjs").write_text(text)
        return ["node", SCRIPTS / "worker.mjs", tmp_path / "tasks.mjs"]
    (tmp_path / f"{name}.sh").write_text(SH_PROGRAMS[name])
    return ["sh", SCRIPTS / "worker.sh", NAMES[name], "sh", tmp_path / f"{name}.sh"]


@contextmanager
def worker(kind, name, url, secret, tmp_path, **environment):
    """Start a worker that can run a task, and end it."""
    secrets = {"PGQUEUE_REMOTE_URL": url, "PGQUEUE_REMOTE_TOKEN": secret}
    output = Path(tmp_path / f"{kind}.log")
    with output.open("wb") as file:
        process = subprocess.Popen(
            command_of(kind, name, tmp_path), env=os.environ | secrets | environment, stdout=file, stderr=file
        )
        try:
            yield process
        except BaseException:
            print(output.read_text())  # noqa: T201 -- shows why the test has failed
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            finally:
                process.kill()
                process.wait()


def state_of(job):
    return Job.objects.get(pk=job.pk).state


def enqueue_waiting(tmp_path):
    """Return a job that waits for a file, the file, and the file that says that it has started."""
    go, started = tmp_path / "go", tmp_path / "started"
    return tasks.wait_again.enqueue(str(go), str(started)), go, started


@pytest.fixture
def short_lease(settings):
    settings.PGQUEUE = {"LEASE": 4.0}


def first_end(job):
    """Return the first attempt that has ended, except one that was released because a worker stopped."""
    return Execution.objects.filter(job=job, outcome__in=["succeeded", "failed"]).order_by("pk").first()


def test_script_completes_and_fails_jobs(url, token, kind, tmp_path):
    jobs = {"ADD": tasks.add.enqueue(1, b=2), "FAIL": tasks.fail.enqueue(), "BAD": tasks.noop.enqueue()}
    secret, ends = token(), {}
    for names in [[*jobs]] if kind == "node" else [[name] for name in jobs]:  # a shell worker has one task
        with worker(kind, names[0], url, secret, tmp_path):
            for name in names:
                ends[name] = helpers.wait_until(partial(first_end, jobs[name]), 20)
    assert Job.objects.get(pk=ends["ADD"].job_id).result == 3
    assert "not today" in ends["FAIL"].error
    assert "the server refuses the re" in ends["BAD"].error
    assert state_of(ends["BAD"].job) == "dead"


def test_script_extends_lease_and_ends_after_its_job(url, token, kind, tmp_path, short_lease):
    job, go, started = enqueue_waiting(tmp_path)
    later = tasks.wait_again.using(priority=-1).enqueue(str(go), str(started))
    with worker(kind, "WAIT", url, token(), tmp_path) as process:
        helpers.wait_until(started.exists, 20)

        def was_extended():
            execution = Execution.objects.get(job=job)
            return (execution.lease_expires_at - execution.claimed_at).total_seconds() > 9

        helpers.wait_until(was_extended, 20)
        process.send_signal(signal.SIGTERM)
        extended = Execution.objects.get(job=job).lease_expires_at
        helpers.wait_until(lambda: Execution.objects.get(job=job).lease_expires_at > extended, 10)
        go.touch()
        assert process.wait(20) == 0
    assert (state_of(job), state_of(later)) == ("succeeded", "ready")
    ended = Job.objects.get(pk=job.pk)
    assert ended.result == "waited"
    assert kind == "sh" or ended.progress.message == "waiting"
    assert Worker.objects.get(pid=process.pid).stopped_at is not None


def test_script_stops_cancelled_job(url, token, kind, tmp_path, short_lease):
    job, go, started = enqueue_waiting(tmp_path)
    with worker(kind, "WAIT", url, token(), tmp_path):
        helpers.wait_until(started.exists, 20)
        job.cancel()
        helpers.wait_until(lambda: state_of(job) == "cancelled", 20)
    assert Path(f"{go}.stopped").exists()
    assert "cancelled while it ran" in Execution.objects.get(job=job).error


def test_script_that_lost_its_lease_stops_job_and_claims_again(url, token, kind, tmp_path, short_lease, engine):
    job, go, started = enqueue_waiting(tmp_path)
    with worker(kind, "WAIT", url, token(), tmp_path):
        helpers.wait_until(started.exists, 20)
        helpers.end_lease(engine)
        assert len(helpers.rescue(engine)) == 1
        helpers.wait_until(Path(f"{go}.stopped").exists, 20)
        helpers.wait_until(lambda: state_of(job) == "running", 20)
        go.touch()
        helpers.wait_until(lambda: state_of(job) == "succeeded", 20)
    outcomes = Execution.objects.filter(job=job).order_by("pk").values_list("outcome", flat=True)
    assert list(outcomes) == ["crashed", "succeeded"]


def test_second_signal_releases_job_of_node_worker(url, token, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    job, _, started = enqueue_waiting(tmp_path)
    with worker("node", "WAIT", url, token(), tmp_path) as process:
        helpers.wait_until(started.exists, 20)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    job = Job.objects.get(pk=job.pk)
    assert (job.state, job.attempt) == ("ready", 0)


def test_killed_shell_worker_ends_its_job(url, token, tmp_path, short_lease):
    for program in PROGRAMS["sh"]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    _, go, started = enqueue_waiting(tmp_path)
    with worker("sh", "WAIT", url, token(), tmp_path) as process:
        helpers.wait_until(started.exists, 20)
        process.kill()
        process.wait()
        helpers.wait_until(Path(f"{go}.stopped").exists, 20)


@pytest.mark.parametrize("is_lost", [False, True])
def test_loop_of_the_guide_extends_lease_of_long_job(url, token, tmp_path, short_lease, engine, is_lost):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    [loop] = [text for text in blocks("docs/production/remote_workers.md", "sh") if "heartbeat()" in text]
    job, go, started = enqueue_waiting(tmp_path)
    machine = Machine(token()).register()
    [execution] = machine.claim()
    (tmp_path / "encode").write_text(f"#!/bin/sh\ntouch {started}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    (tmp_path / "encode").chmod(0o755)
    values = {
        "worker": machine.handle,
        "handle": execution["execution"],
        "extend_seconds": "1",
        "url": f"{url}v1",
        "token": f"Authorization: Bearer {machine.secret}",
        "json": "Content-Type: application/json",
    }
    process = subprocess.Popen(["sh", "-c", loop], cwd=tmp_path, env=os.environ | values, stdout=subprocess.PIPE)
    try:
        helpers.wait_until(started.exists, 20)
        first = Execution.objects.get(job=job).lease_expires_at
        helpers.wait_until(lambda: Execution.objects.get(job=job).lease_expires_at > first + timedelta(seconds=2), 20)
        if is_lost:
            helpers.end_lease(engine)
            helpers.rescue(engine)
        else:
            go.touch()
        assert process.wait(20) is not None
        assert process.stdout.read() == (b"failed\n" if is_lost else b"succeeded\n")
    finally:
        process.terminate()
        process.communicate()


class IdleServer(BaseHTTPRequestHandler):
    """A server that answers each claim at once without a job. It records when claims arrive."""

    claimed_at: list[float]

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer, status = {"executions": []}, 200
        if self.path.endswith("/workers"):
            times = {"lease_seconds": 60, "extend_seconds": 15, "max_wait_seconds": 25}
            answer, status = {"worker": "w", "worker_id": 1, **times}, 201
        elif self.path.endswith("/claim"):
            self.claimed_at.append(time.monotonic())
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


def test_script_without_work_claims_less_often(kind, tmp_path):
    claimed_at = IdleServer.claimed_at = list[float]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), IdleServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with worker(kind, "ADD", f"http://127.0.0.1:{server.server_port}/remote/", "secret", tmp_path) as process:
            helpers.wait_until(lambda: len(claimed_at) >= 4, 30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(3) == 0, "a signal must end the pause"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert claimed_at[3] - claimed_at[0] > 2.5


def test_script_refuses_url_that_would_leak_token(kind, tmp_path):
    with worker(kind, "ADD", "http://example.com/remote/", "secret", tmp_path) as process:
        assert process.wait(10) == 1


def test_script_with_refused_token_ends_with_exit_code_1(url, token, kind, tmp_path):
    with worker(kind, "ADD", url, "pgq_wrong", tmp_path) as process:
        assert process.wait(10) == 1
