"""Remote workers as real processes, and what is lost: the server, a machine, the token.

CI does not run this file, because it takes half a minute: `python -m pytest tests/remote/machines.py`.
"""

import signal
import threading
import time
from contextlib import suppress

import pytest
from django.core.servers.basehttp import ThreadedWSGIServer
from django.core.wsgi import get_wsgi_application

from django_pgqueue.contrib.remote import machine_tokens
from django_pgqueue.lifecycle import remote_tokens
from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks

from .test_worker import QuietHandler, remote_worker


class Server(ThreadedWSGIServer):
    """A server that can be stopped, and started again on the same port."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    @classmethod
    def begin(cls, port=0):
        server = cls(("127.0.0.1", port), QuietHandler)
        server.set_app(get_wsgi_application())
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def end(self):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/remote/"


@pytest.fixture
def server(token):
    server = Server.begin()
    yield server
    with suppress(OSError):
        server.end()


def is_in(job, state):
    return Job.objects.get(pk=job.pk).state == state


def test_server_lost_while_job_ends_gets_its_result_later(token, tmp_path):
    server = Server.begin()
    job = tasks.wait_for_file.enqueue(str(tmp_path / "go"), 30, str(tmp_path / "started"))
    with remote_worker(server.url, token()) as process:
        helpers.wait_until((tmp_path / "started").exists, 15)
        server.end()
        (tmp_path / "go").touch()
        time.sleep(3)
        assert is_in(job, "running")
        server = Server.begin(server.server_port)
        helpers.wait_until(lambda: is_in(job, "succeeded"), 20)
        other = tasks.add.enqueue(1)
        helpers.wait_until(lambda: is_in(other, "succeeded"), 40)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    server.end()
    assert process.returncode == 0


def test_long_job_keeps_its_lease_and_is_cancelled(server, token, tmp_path, engine, settings):
    settings.PGQUEUE = {"LEASE": 4.0}
    job = tasks.wait_for_file.enqueue(str(tmp_path / "never"), 60, str(tmp_path / "started"))
    with remote_worker(server.url, token()):
        helpers.wait_until((tmp_path / "started").exists, 15)
        time.sleep(6)
        assert helpers.rescue(engine) == {}, "the lease must be extended"
        job.cancel()
        helpers.wait_until(lambda: is_in(job, "cancelled"), 30)


def test_killed_machine_loses_its_job_to_another(server, token, tmp_path, engine, settings):
    settings.PGQUEUE = {"LEASE": 4.0}
    job = tasks.wait_again.enqueue(str(tmp_path / "go"), str(tmp_path / "started"))
    with remote_worker(server.url, token()) as process:
        helpers.wait_until((tmp_path / "started").exists, 15)
        process.kill()
    helpers.wait_until(lambda: helpers.rescue(engine), 10)
    (tmp_path / "go").touch()
    with remote_worker(server.url, token()):
        helpers.wait_until(lambda: is_in(job, "succeeded"), 30)
    executions = Execution.objects.filter(job_id=job.pk).order_by("pk")
    assert list(executions.values_list("outcome", flat=True)) == ["crashed", "succeeded"]


def test_revoked_token_ends_worker_with_exit_code_1(server, token, engine):
    secret, job = token(), tasks.add.enqueue(1)
    with remote_worker(server.url, secret) as process:
        helpers.wait_until(lambda: is_in(job, "succeeded"), 30)
        row = remote_tokens.use_remote_token(engine, machine_tokens.digest_of(secret))
        remote_tokens.revoke_remote_token(engine, row.token_id, revoked_by="ann")
        output, _ = process.communicate(timeout=40)
    assert process.returncode == 1
    assert "401 Unauthorized" in output


def test_until_empty_ends_when_no_due_job_is_left(server, token):
    jobs = [tasks.add.enqueue(number) for number in range(20)]
    with remote_worker(server.url, token(), "--until-empty", "--isolation", "process") as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert all(is_in(job, "succeeded") for job in jobs)


def test_signal_while_server_does_not_answer_ends_worker(server, token):
    server.end()
    with remote_worker(server.url, token()) as process:
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=5)
    assert process.returncode == 0
