"""Remote workers obey the rules of local ones: leases, pauses, limits, expiry, codecs, signals, databases."""

from datetime import timedelta
from types import MappingProxyType

import pytest
from django.core import signing

from django_pgqueue import Batch, Chunk, chain, control, signals
from django_pgqueue.contrib.remote import handles, machine_tokens, transitions
from django_pgqueue.contrib.remote.engine import close_engines
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import remote_tokens
from django_pgqueue.models import Execution, Job, Worker, operations_link
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition
from tests import helpers
from tests.app import tasks
from tests.concurrency.limits import add

from .conftest import Machine, state_of


@pytest.mark.promise("remote-machine-lost-job-runs-again")
def test_lost_machine_is_rescued_and_its_completion_refused(machine, engine):
    job, one, two = tasks.add.enqueue(1), machine(), machine()
    [lost] = one.claim()
    helpers.end_lease(engine, lost["execution_id"])
    assert len(helpers.rescue(engine)) == 1
    [again] = two.claim()
    assert (again["attempt"], again["crashes"]) == (2, 1)
    assert one.end("complete", lost) == (409, ["lost"])
    status, answer = one.post("extend", {"worker": one.handle, "executions": [{"execution": lost["execution"]}]})
    assert (status, answer["executions"][0]["result"]) == (409, "lost")
    assert state_of(job) == "running"
    assert two.end("complete", again) == (200, ["done"])


def left_seconds(execution):
    """Return how long the lease of a claimed job lasts from now."""
    row = Execution.objects.annotate(now=operations_link.database_now()).get(pk=execution["execution_id"])
    return (row.lease_expires_at - row.now).total_seconds()


def let_pass(engine, seconds):
    """Let the leases of all open executions end so much earlier."""
    change = "UPDATE pgqueue_execution SET lease_expires_at = lease_expires_at - make_interval(secs => %(seconds)s)"
    engine.execute(f"{change} WHERE outcome IS NULL", {"seconds": seconds})


@pytest.mark.promise("remote-machine-lost-job-runs-again")
def test_claim_with_longer_lease_is_rescued_after_it(machine, engine):
    """The claim says how long its leases last. Extensions last as long, and a late worker is fenced off."""
    first, second, one = tasks.add.enqueue(1), tasks.add.enqueue(2), machine()
    [usual] = one.claim(limit=1)
    [longer] = one.claim(limit=1, lease_seconds=600)
    assert (usual["lease_seconds"], longer["lease_seconds"]) == (60, 600)
    assert (left_seconds(usual), left_seconds(longer)) == pytest.approx((60, 600), abs=30)
    let_pass(engine, 40)
    items = [{"execution": each["execution"]} for each in (usual, longer)]
    status, answer = one.post("extend", {"worker": one.handle, "executions": items})
    assert (status, {each["result"] for each in answer["executions"]}) == (200, {"done"})
    assert (left_seconds(usual), left_seconds(longer)) == pytest.approx((60, 600), abs=30)
    let_pass(engine, 100)
    assert set(helpers.rescue(engine)) == {usual["execution_id"]}
    assert state_of(second) == "running"
    let_pass(engine, 550)
    assert set(helpers.rescue(engine)) == {longer["execution_id"]}
    assert (state_of(first), state_of(second)) == ("ready", "ready")
    assert one.end("complete", longer, result=7) == (409, ["lost"])
    assert one.post("extend", {"worker": one.handle, "executions": items})[0] == 409
    assert state_of(second) == "ready"


def test_claim_after_one_with_longer_lease_has_usual_lease(machine):
    """All machines of a scope share one claimer. The lease that one of them asks for is not that of the next."""
    tasks.add.enqueue(1)
    tasks.add.enqueue(2)
    one, two = machine(), machine()
    [longer] = one.claim(limit=1, lease_seconds=3600)
    [usual] = two.claim(limit=1)
    assert (left_seconds(longer), left_seconds(usual)) == pytest.approx((3600, 60), abs=30)


@pytest.mark.parametrize("seconds", [59.9, 3600.1, "60"])
def test_claim_with_lease_outside_bounds_claims_nothing(machine, seconds):
    job, one = tasks.add.enqueue(1), machine()
    status, answer = one.post("claim", {"worker": one.handle, "lease_seconds": seconds})
    assert (status, state_of(job)) == (400, "ready")
    assert answer["detail"] == "lease_seconds in the body must be a number of seconds from 60 to 3,600"


def test_longer_lease_of_a_job_in_a_batch_is_kept(machine):
    with Batch() as batch:
        tasks.add.using(batch=batch).enqueue(1)
    one = machine()
    [execution] = one.claim(lease_seconds=300)
    token_id = signing.loads(execution["execution"], salt=handles.EXECUTION_SALT)[1]
    read = handles.read_execution(execution["execution"], token_id, "default")
    assert (read.claimed.batch_id, read.lease_seconds) == (batch.record.pk, 300)


def test_last_attempt_is_not_the_last_if_the_job_got_more(machine):
    jobs, one = [tasks.fail.using(max_attempts=1).enqueue() for _ in range(3)], machine()
    first, second, third = one.claim()
    assert Job.objects.all().set_max_attempts(2) == 3
    assert one.end("fail", first, error="down") == (200, ["done"])
    assert one.end("fail", second, error="no such order", then="dead") == (200, ["done"])
    assert one.end("fail", third, crashed=True) == (200, ["done"])
    assert [state_of(job) for job in jobs] == ["ready", "dead", "ready"]


@pytest.mark.promise("remote-handle-completes-its-execution-only")
def test_handle_of_recurring_execution_id_is_refused(machine, engine):
    """After a restored dump, ids recur. The time of the claim is part of the fence."""
    one = machine()
    tasks.add.enqueue(1)
    [old] = one.claim()
    engine.execute("UPDATE pgqueue_execution SET claimed_at = claimed_at + interval '1 h'")
    before = Execution.objects.get().lease_expires_at
    assert one.end("complete", old) == (409, ["lost"])
    assert one.post("extend", {"worker": one.handle, "executions": [{"execution": old["execution"]}]})[0] == 409
    assert Execution.objects.get().lease_expires_at == before


@pytest.mark.promise("remote-handle-completes-its-execution-only")
def test_stolen_or_changed_handle_is_unknown(machine, engine):
    job, one, thief = tasks.add.enqueue(1), machine(), machine()
    [execution] = one.claim()
    changed = execution["execution"][:-1] + ("A" if execution["execution"][-1] != "A" else "B")
    assert thief.end("complete", execution) == (404, ["unknown"])
    assert one.end("complete", {"execution": changed}) == (404, ["unknown"])
    assert one.end("complete", {"execution": one.handle}) == (404, ["unknown"])
    token_id = remote_tokens.use_remote_token(engine, machine_tokens.digest_of(one.secret)).token_id
    of_other_release = signing.dumps(["default", token_id, 7], salt=handles.EXECUTION_SALT)
    assert one.end("complete", {"execution": of_other_release}) == (404, ["unknown"])
    assert thief.post("claim", {"worker": one.handle})[0] == 404
    assert thief.post("workers/stop", {"worker": one.handle})[0] == 404
    assert state_of(job) == "running"
    assert one.end("complete", execution, {"execution": changed}) == (207, ["done", "unknown"])


def test_worker_row_shows_machine_and_stop_releases_its_jobs(machine):
    job, one = tasks.add.enqueue(1), machine().register(name="vm-7", pid=77, concurrency=4)
    row = Worker.objects.get(pid=77)
    assert (row.hostname.endswith("/vm-7"), row.concurrency, row.supervisor_pid) == (True, 4, None)
    [execution] = one.claim()
    assert Execution.objects.get(pk=execution["execution_id"]).worker_id == row.pk
    assert one.post("workers/stop", {"worker": one.handle}) == (200, {})
    row.refresh_from_db()
    assert (row.stopped_at is not None, state_of(job), job.attempt) == (True, "ready", 0)


def test_worker_row_that_was_removed_is_written_again(machine, engine):
    one = machine().register(pid=78)
    Worker.objects.all().delete()
    transitions._heartbeats.clear()
    assert one.claim() == []
    assert Worker.objects.get(pid=78).queue_names == ""


@pytest.mark.promise("remote-claims-obey-limits-and-pauses")
def test_paused_queue_and_task_give_no_jobs(machine):
    tasks.add.using(queue_name="slow").enqueue(1)
    tasks.fail.enqueue()
    control.pause("slow")
    control.pause(task=tasks.fail)
    one = machine()
    assert one.claim() == []
    control.resume("slow")
    assert [each["queue"] for each in one.claim()] == ["slow"]


@pytest.mark.promise("remote-claims-obey-limits-and-pauses")
def test_limit_admits_next_job_after_completion(machine, engine, monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"one": Limit("one", key="{key}", concurrency=1)}))
    add(engine, "one:a", 2)
    one = machine()
    [first] = one.claim()
    assert one.claim() == []
    assert one.end("complete", first) == (200, ["done"])
    assert len(one.claim()) == 1


def test_expired_job_is_cancelled_instead_of_sent(machine, engine):
    job, one = tasks.add.using(expires=timedelta(seconds=60)).enqueue(1), machine()
    engine.execute("UPDATE pgqueue_job SET expires_at = expires_at - interval '61 s'")
    assert one.claim() == []
    assert state_of(job) == "cancelled"


def test_atomic_tasks_and_unknown_tasks_are_left_to_local_workers(machine, engine):
    atomic, one = tasks.create_group.enqueue("a"), machine()
    unknown = helpers.make_job(engine, task_name="gone.task")
    known = tasks.add.enqueue(1)
    assert [each["job_id"] for each in one.claim()] == [known.pk]
    assert (state_of(atomic), atomic.attempt) == ("ready", 0)
    row = Job.objects.get(pk=unknown)
    assert (row.state, row.attempt) == ("ready", 0)


def collect(chunk: Chunk[int]) -> None:
    """A task that takes chunks. It is not registered, because its jobs would be searched for in all tests."""


def test_chunks_are_left_to_local_workers(machine, engine, monkeypatch):
    task = TaskDefinition(func=collect, chunk=2)
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, task.name: task})
    monkeypatch.setattr(registry, "_chunk_keys", None)
    helpers.make_jobs(engine, 2, task_name=task.name)
    engine.execute("UPDATE pgqueue_job SET limit_key = %s", [chunk_key(task.name)])
    assert machine().claim() == []
    assert not Execution.objects.exists()


def test_ended_attempts_are_counted(machine, engine):
    tasks.add.enqueue(1)
    tasks.add.enqueue(2)
    one = machine()
    first, second = one.claim()
    one.end("complete", first)
    one.end("fail", second, then="dead", exception_class="node.Error")
    close_engines()
    counted = "SELECT sum(succeeded), sum(dead), max(exception_class) FROM pgqueue_rollup"
    assert engine.execute(counted).fetchone() == (1, 1, "node.Error")


def test_encoded_arguments_and_results_pass_as_plain_json(machine, settings):
    settings.PGQUEUE = {"CODECS": ["tests.app.codecs.Hidden"]}
    job, one = tasks.add.enqueue(1, b=2), machine()
    [execution] = one.claim()
    assert (execution["args"], execution["kwargs"]) == ([1], {"b": 2})
    assert one.end("complete", execution, result={"sum": 3}) == (200, ["done"])
    assert Job.objects.get(pk=job.pk).result == {"sum": 3}


@pytest.mark.promise("defect-remote-ends-of-batches")
@pytest.mark.promise("batch-callbacks-once")
def test_completion_that_ends_a_batch_enqueues_its_callbacks(machine):
    with Batch(on_success=tasks.noop.using(queue_name="callbacks").s("success")) as batch:
        tasks.add.using(batch=batch).enqueue(1)
    failed = tasks.noop.using(queue_name="callbacks").s("failed")
    workflow = chain(tasks.add.s(1)).then(tasks.add).enqueue(on_failure=failed)
    one = machine()
    plain, node = one.claim()
    assert one.end("complete", plain, result=1) == (200, ["done"])
    assert batch.record.succeeded_at is not None
    assert one.end("fail", node, then="dead", error="no such order") == (200, ["done"])
    assert list(workflow.jobs.order_by("pk").values_list("state", flat=True)) == ["dead", "cancelled"]
    assert workflow.batch.record.completed_at is not None
    added = Job.objects.filter(queue_name="callbacks").order_by("pk")
    assert [job.arguments["args"] for job in added] == [["success"], ["failed"]]
    assert one.end("complete", plain, result=1) == (200, ["already"])
    assert added.count() == 2


def test_signals_are_sent_by_the_server(machine):
    seen = []

    def receive(sender, signal, **about):
        seen.append((signal, about["job_id"]))

    heard = (signals.job_started, signals.job_succeeded)
    for signal in heard:
        signal.connect(receive)
    try:
        job, one = tasks.add.enqueue(1), machine()
        assert one.end("complete", *one.claim()) == (200, ["done"])
    finally:
        for signal in heard:
            signal.disconnect(receive)
    assert seen == [(signal, job.pk) for signal in heard]


def test_jobs_of_another_database_have_addresses_and_handles_of_their_own(token, other):
    secret, job = token(), tasks.add.enqueue(1)
    one = Machine(secret, place="other").register()
    [execution] = one.claim()
    assert execution["job_id"] == job.pk, "the alias leads to the same database"
    assert Machine(secret).end("complete", execution) == (404, ["unknown"])
    assert one.end("complete", execution) == (200, ["done"])


@pytest.mark.promise("failure-of-all-completions-blames-no-job")
def test_completion_refused_is_a_failure_only_after_another(machine, engine):
    bad, good, one = tasks.add.enqueue(1), tasks.add.enqueue(1), machine()
    first, second = one.claim()
    with helpers.users_trigger(engine, f"NEW.id = {bad.pk} AND NEW.state = 'succeeded'", "42P01"):
        for _ in range(2):
            assert one.end("complete", first) == (503, ["locked"]), "the database may refuse all reports: send it again"
        assert state_of(bad) == "running"
        assert one.end("complete", second) == (200, ["done"])
        assert one.end("complete", first) == (200, ["done"])
    assert (state_of(bad), state_of(good)) == ("dead", "succeeded")


def test_completion_refused_in_each_form_is_refused(machine, engine):
    bad, _, one = tasks.add.enqueue(1), tasks.add.enqueue(1), machine()
    first, second = one.claim()
    with helpers.users_trigger(engine, f"NEW.id = {bad.pk}"):
        body = {"executions": [{"execution": each["execution"]} for each in (first, second)]}
        status, answer = one.post("complete", body)
    assert (status, [each["result"] for each in answer["executions"]]) == (207, ["refused", "done"])
