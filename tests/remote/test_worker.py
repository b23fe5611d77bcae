"""The Python worker on another machine, and clients that are not Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from django_pgqueue import chain
from django_pgqueue.models import Execution, Job, Worker
from tests import helpers
from tests.app import tasks

TOP = Path(__file__).parents[2]


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def url(token):
    """Serve the interface on a port of this machine, and return its URL."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), QuietHandler)
    server.daemon_threads = True
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/remote/"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def remote_worker(url, secret, *arguments):
    """Start a worker that cannot reach the database, and end it."""
    command = [
        sys.executable,
        "-m",
        "django",
        "pgqueue",
        "-v",
        "2",
        "remote-worker",
        url,
        "--concurrency",
        "4",
        *arguments,
    ]
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.remote.machine_settings",
        "PGQUEUE_REMOTE_TOKEN": secret,
    }
    process = subprocess.Popen(
        command, cwd=TOP, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_remote_worker_runs_jobs_without_database(url, token, tmp_path):
    added, async_added, failed = tasks.add.enqueue(1, b=2), tasks.async_add.enqueue(3, b=4), tasks.fail.enqueue("no")
    snoozed = tasks.raise_directive.enqueue("snooze", 3600)
    isolated = tasks.isolated_pid.enqueue()
    running = tasks.wait_for_file.enqueue(str(tmp_path / "go"), 30, str(tmp_path / "started"))
    with remote_worker(url, token(), "--wait", "20") as process:
        helpers.wait_until(lambda: Job.objects.filter(state__in=["succeeded", "dead"]).count() == 4, 20)
        helpers.wait_until((tmp_path / "started").exists)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        output, _ = process.communicate(timeout=20)
    states = {job.pk: (job.state, job.result) for job in Job.objects.all()}
    assert process.returncode == 0, output
    assert states[added.pk] == ("succeeded", 3)
    assert states[async_added.pk] == ("succeeded", 7)
    assert states[failed.pk] == ("dead", None)
    assert states[snoozed.pk] == ("ready", None)
    assert states[isolated.pk][0] == "succeeded"
    assert states[running.pk] == ("succeeded", str(tmp_path / "go")), "a running job must end before the worker"
    last = Execution.objects.filter(job_id=failed.pk).latest("pk")
    assert (last.error, last.exception_class) == ("no", "builtins.RuntimeError")
    assert "in fail" in last.traceback
    assert f"{tasks.add.name}" in output, "each job that ends has a line"
    assert Worker.objects.get(pid=process.pid).stopped_at is not None


@pytest.mark.process
def test_remote_worker_runs_a_workflow_with_results(url, token):
    """The server reads the results for the machine, and advances the dependents of what the machine has done."""
    workflow = chain(tasks.add.s(1)).then(tasks.add, 2).then(tasks.async_add, 3).enqueue()
    broken = chain(tasks.raise_exception.s("value")).then(tasks.noop).enqueue()
    with remote_worker(url, token(), "--wait", "20"):
        helpers.wait_until(lambda: workflow.jobs.filter(state="succeeded").count() == 3, 20)
        helpers.wait_until(lambda: broken.jobs.filter(state="cancelled").exists(), 20)
    assert workflow.nodes[-1].job.return_value == 6


def test_remote_worker_refuses_steps_with_a_clear_error(url, token):
    job = tasks.with_step.enqueue()
    with remote_worker(url, token()):
        helpers.wait_until(lambda: Job.objects.filter(pk=job.pk, state="dead").exists(), 20)
    execution = Execution.objects.get(job=job)
    assert execution.exception_class == "django_pgqueue.declared.steps.StepError"
    assert "with_step runs in a remote worker, which has no connection to the database" in execution.error


def test_curl_runs_the_life_of_a_job(url, token):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    secret, job = token(), tasks.add.enqueue(20, b=22)

    def post(path, body):
        command = ["curl", "-sS", "-w", "\n%{http_code}", "-d", json.dumps(body)]
        command += ["-H", f"Authorization: Bearer {secret}", "-H", "Content-Type: application/json"]
        answer, _, status = subprocess.check_output([*command, f"{url}v1/{path}"], text=True).rpartition("\n")
        return int(status), json.loads(answer)

    _, registered = post("workers", {"name": "shell"})
    _, claimed = post("claim", {"worker": registered["worker"], "wait_seconds": 1})
    [execution] = claimed["executions"]
    item = {"execution": execution["execution"], "result": sum([*execution["args"], *execution["kwargs"].values()])}
    assert post("complete", {"executions": [item]})[0] == 200
    job.refresh_from_db()
    assert job.result == 42


NODE = """
const [url, token] = process.argv.slice(1);
async function post(path, body) {
  const response = await fetch(url + "v1/" + path, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return { status: response.status, ...(await response.json()) };
}
const { worker } = await post("workers", { name: "node", pid: process.pid });
const { executions } = await post("claim", { worker, limit: 2, wait_seconds: 1 });
const good = executions.find((each) => each.task.endsWith(".add"));
const bad = executions.find((each) => each.task.endsWith(".fail"));
const items = [{ execution: good.execution, result: good.args[0] + good.kwargs.b }];
const first = await post("complete", { executions: items });
const again = await post("complete", { executions: items });
const failed = await post("fail", { executions: [{ execution: bad.execution, error: "from node", then: "dead" }] });
const left = await post("release", { executions: [{ execution: "stolen" }] });
await post("workers/stop", { worker });
console.log(JSON.stringify([first, again, failed, left].map((each) => [each.status, each.executions[0].result])));
"""


def test_node_script_completes_and_fails_jobs(url, token):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    job, other = tasks.add.enqueue(1, b=2), tasks.fail.enqueue()
    command = ["node", "--input-type=module", "-e", NODE, url, token()]
    answers = json.loads(subprocess.check_output(command, text=True))
    assert answers == [[200, "done"], [200, "already"], [200, "done"], [404, "unknown"]]
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, job.result, other.state) == ("succeeded", 3, "dead")
