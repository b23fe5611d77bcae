"""Codecs: stored arguments and results are encoded wherever they are written, and decoded wherever they are read."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue import CannotDecode, enqueue_many, every, log, task
from django_pgqueue.db.statements import clock
from django_pgqueue.encoding import codecs
from django_pgqueue.encoding.serialization import (
    chunks,
    decode_arguments,
    encode_arguments,
    encode_result,
    normalise_call,
)
from django_pgqueue.exceptions import ResultNotStored, TaskTimeout
from django_pgqueue.ground.envelope import CODEC, EncodedValue, codec_of, is_envelope, seal
from django_pgqueue.models import Execution, Job, Schedule
from django_pgqueue.schedules import declarations
from django_pgqueue.settings import conf
from django_pgqueue.tasks import registry
from django_pgqueue.testing import assert_enqueued, run_jobs
from tests.app import tasks
from tests.app.codecs import Hidden
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.django_db
SECRET = "hunter2-correct-horse"
HIDDEN, OTHER, COMPRESSED = (f"tests.app.codecs.{name}" for name in ("Hidden", "Other", "Compressed"))
echo: Any = tasks.plus  # adds, so it also accepts two strings


@contextmanager
def codecs_are(*paths: str | None, **options: Any):
    with override_settings(PGQUEUE={"CODECS": list(paths), **options}):
        yield


def stored(column: str) -> list[str]:
    """Return the stored text of a column of all jobs."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}::text FROM pgqueue_job WHERE {column} IS NOT NULL ORDER BY id")
        return [text for [text] in cursor.fetchall()]


def names_of(texts: list[str]) -> list[str | None]:
    return [codec_of(text) for text in texts]


# ------------------------------------------------------------------ every way to enqueue


ENQUEUES = {
    "enqueue": lambda: [echo.enqueue(SECRET, b="!")],
    "using": lambda: [echo.using(priority=3).enqueue(SECRET, b="!")],
    "aenqueue": lambda: [async_to_sync(echo.aenqueue)(SECRET, b="!")],
    "enqueue_many": lambda: echo.enqueue_many([((SECRET,), {"b": "!"})] * 45),
    "unique": lambda: [echo.using(unique_key="k").enqueue(SECRET, b="!")],
    "unique many": lambda: echo.using(unique_key=lambda a, b: None).enqueue_many([((SECRET,), {"b": "!"})] * 3),
    "unique many with keys": lambda: echo.using(unique_key=lambda a, b: a).enqueue_many([((SECRET,), {"b": "!"})]),
    "replace": lambda: [echo.using(unique_key="k", on_conflict="replace").enqueue(SECRET, b="!") for _ in "ab"][:1],
    "window": lambda: [echo.using(unique_key="k", unique_while=60).enqueue(SECRET, b="!")],
    "window many": lambda: echo.using(unique_key="k", unique_while=60).enqueue_many([((SECRET,), {"b": "!"})]),
    "several tasks": lambda: enqueue_many([echo.s(SECRET, b="!"), echo.using(priority=3).s(SECRET, b="!")]),
    "several keys": lambda: enqueue_many([echo.using(unique_key=key).s(SECRET, b="!") for key in "ab"]),
    "on commit": lambda: [echo.enqueue_on_commit(SECRET, b="!")],
    "framework": lambda: [framework_tasks.add.using(queue_name="default").enqueue(SECRET, b="!")],
}


@pytest.mark.parametrize("way", ENQUEUES)
@pytest.mark.parametrize("paths", [[HIDDEN], [OTHER, HIDDEN]], ids=["one", "two"])
def test_enqueue_with_codec_stores_and_runs_encoded(way, paths):
    with codecs_are(*paths):
        made = ENQUEUES[way]()
        texts = stored("arguments")
        assert len(texts) == len(made)
        assert set(names_of(texts)) == {"hidden" if paths == [HIDDEN] else "other"}
        assert SECRET not in "".join(texts)
        for job in Job.objects.all():
            assert job.arguments == {"args": [SECRET], "kwargs": {"b": "!"}}
        assert run_jobs(raising=True) == len(texts)
        assert set(names_of(stored("result"))) == set(names_of(texts))
        assert set(Job.objects.values_list("result", flat=True)) == {f"{SECRET}!"}


@pytest.mark.parametrize("way", sorted(ENQUEUES.keys() - {"framework"}))
def test_enqueue_without_codec_stores_the_plain_text(way):
    ENQUEUES[way]()
    run_jobs(raising=True)
    assert set(stored("arguments")) == {f'{{"args":["{SECRET}"],"kwargs":{{"b":"!"}}}}'}
    assert set(stored("result")) == {f'"{SECRET}!"'}


def test_enqueued_job_arguments_are_readable_without_query():
    with codecs_are(HIDDEN):
        job = echo.enqueue(SECRET, b="!")
        assert job.arguments == {"args": [SECRET], "kwargs": {"b": "!"}}
        assert assert_enqueued(echo, args=[SECRET], kwargs={"b": "!"}).pk == job.pk


def test_immediate_job_is_encoded_and_its_result_read():
    with codecs_are(HIDDEN, IMMEDIATE=True):
        job = echo.enqueue(SECRET, "!")
        assert (job.state, job.result, job.wait(0)) == ("succeeded", f"{SECRET}!", f"{SECRET}!")
    assert names_of(stored("arguments") + stored("result")) == ["hidden", "hidden"]


def test_job_of_schedule_is_plain_and_its_result_encoded(monkeypatch):
    """The arguments of a schedule are in the code. With a codec that differs each time, its digest would change."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})
    scheduled = task(schedule=every(hours=1, args=["a", "b"]))(tasks.plus.func)
    [before] = declarations.definitions("default").values()
    with codecs_are(HIDDEN):
        assert declarations.definitions("default")[scheduled.name].digest == before.digest
        run_jobs(until=timedelta(hours=1), schedules=True, raising=True)
        assert Schedule.objects.get().arguments == {"args": ["a", "b"], "kwargs": {}}
        assert names_of(stored("arguments")) == [None]
        assert names_of(stored("result")) == ["hidden"]


def test_context_of_encoded_framework_job_has_its_arguments():
    with codecs_are(HIDDEN):
        result = framework_tasks.own_arguments.enqueue(SECRET, 2)
        run_jobs(raising=True)
        assert framework_tasks.own_arguments.get_result(result.id).return_value == [SECRET, 2]


def test_typed_job_with_codec_gets_and_returns_its_types():
    with codecs_are(HIDDEN):
        job = tasks.use_token_on.enqueue(date(2026, 1, 2), SECRET)
        assert job.arguments == {"args": ["2026-01-02", SECRET], "kwargs": {}}
        run_jobs(raising=True)
        assert job.wait(0) == date(2026, 1, 2) and job.result == "2026-01-02"
    assert names_of(stored("arguments") + stored("result")) == ["hidden", "hidden"]


def test_retry_of_encoded_job_needs_no_codec():
    with codecs_are(HIDDEN):
        job = echo.enqueue(SECRET, "!")
        run_jobs()
    found = Job.objects.get(pk=job.pk)
    assert isinstance(found.arguments, EncodedValue)
    assert found.retry()
    with codecs_are(HIDDEN):
        assert run_jobs(raising=True) == 1


# ------------------------------------------------------------------ change of codecs


def test_plain_and_encoded_jobs_run_side_by_side():
    echo.enqueue("plain", "!")
    with codecs_are(HIDDEN):
        echo.enqueue("hidden", "!")
    with codecs_are(OTHER, HIDDEN):
        echo.enqueue("other", "!")
        assert names_of(stored("arguments")) == [None, "hidden", "other"]
        assert run_jobs(raising=True) == 3
        assert list(Job.objects.order_by("pk").values_list("result", flat=True)) == ["plain!", "hidden!", "other!"]


def test_none_first_stores_plain_and_decodes_old_values():
    with codecs_are(HIDDEN):
        echo.enqueue("old", "!")
    with codecs_are(None, HIDDEN):
        echo.enqueue("new", "!")
        assert names_of(stored("arguments")) == ["hidden", None]
        assert run_jobs(raising=True) == 2
        assert names_of(stored("result")) == [None, None]


def test_codec_that_returns_none_stores_plain():
    with codecs_are(COMPRESSED):
        echo.enqueue("x", "!")
        echo.enqueue("x" * 10_000, "!")
        texts = stored("arguments")
        assert names_of(texts) == [None, "zlib"] and len(texts[1]) < 300
        assert run_jobs(raising=True) == 2


MISSING = {"no codec": [], "another codec": [OTHER], "another key": ["tests.app.codecs.WrongKey"]}


@pytest.mark.parametrize("paths", MISSING.values(), ids=list(MISSING))
@pytest.mark.parametrize("name", ["plus", "async_plus"])
def test_job_without_its_codec_waits_and_then_dies(paths, name, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    log.enable()
    monkeypatch.setattr(clock, "shift_seconds", 0.0)
    with codecs_are(HIDDEN):
        job = getattr(tasks, name).enqueue(SECRET, "!")
    [text] = stored("arguments")
    try:
        with codecs_are(*paths):
            run_jobs()
            job.refresh_from_db()
            assert (job.state, job.attempt) == ("ready", 0)
            assert job.unknown_since is not None
            clock.shift_seconds = 4000.0
            run_jobs()
    finally:
        log.disable()
    job.refresh_from_db()
    assert job.state == "dead"
    rows = str(list(Execution.objects.values()))
    assert "the job's arguments cannot be read" in rows and "hidden" in rows
    data = json.loads(text)["data"]
    for secret in (SECRET, data, "Decode error", "utf-8"):
        assert secret not in rows + caplog.text + "".join(str(vars(record)) for record in caplog.records)


def test_job_without_its_codec_runs_on_a_worker_that_has_it():
    with codecs_are(HIDDEN):
        job = echo.enqueue(SECRET, "!")
    run_jobs()
    job.refresh_from_db()
    assert job.unknown_since is not None
    Job.objects.filter(pk=job.pk).run_now()
    with codecs_are(None, HIDDEN):
        run_jobs(raising=True)
        job.refresh_from_db()
        assert (job.state, job.result) == ("succeeded", f"{SECRET}!")


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("paths", MISSING.values(), ids=list(MISSING))
def test_result_without_its_codec_raises_only_where_it_is_used(paths):
    with codecs_are(HIDDEN):
        job = echo.enqueue(SECRET, "!")
        ours = framework_tasks.add.using(queue_name="default").enqueue(SECRET, "!")
        run_jobs(raising=True)
    with codecs_are(*paths):
        found = Job.objects.get(pk=job.pk)
        assert isinstance(found.result, EncodedValue) and isinstance(found.arguments, EncodedValue)
        assert SECRET not in repr(found.result) and "hidden" in found.result.problem
        for wait in (found.wait, async_to_sync(found.await_result)):
            with pytest.raises(CannotDecode, match=r"has succeeded, but its result cannot be read.*'hidden'"):
                wait(0)
        with pytest.raises(CannotDecode, match="'hidden'"):
            _ = found.return_value
        for part in ("args", "kwargs"):
            with pytest.raises(CannotDecode, match=r"the job's arguments cannot be read: .*'hidden'"):
                getattr(found, part)
        assert found.status == "SUCCESSFUL"
        result = framework_tasks.add.get_result(ours.id)
        assert isinstance(result.args, EncodedValue) and isinstance(result.kwargs, EncodedValue)
        assert result.is_finished and SECRET not in repr(result)
        with pytest.raises(CannotDecode, match="'hidden'"):
            _ = result.return_value
    with codecs_are(None, HIDDEN):
        assert framework_tasks.add.get_result(ours.id).return_value == f"{SECRET}!"
        assert framework_tasks.add.get_result(ours.id).args == [SECRET, "!"]


@pytest.mark.parametrize("paths", [[], [HIDDEN], [COMPRESSED]], ids=["none", "hidden", "zlib"])
@pytest.mark.parametrize(
    "value",
    [
        {CODEC: "hidden", "data": "aGFja2Vk"},
        {"data": "aGFja2Vk", CODEC: "hidden"},
        {CODEC: "", "data": ""},
        {CODEC: 1, "data": None},
        {CODEC: "hidden", "data": "x", "more": 1},
        {CODEC: "hidden"},
        [{CODEC: "hidden", "data": "aGFja2Vk"}],
    ],
)
def test_result_that_looks_like_an_envelope_comes_back_equal(paths, value):
    with codecs_are(*paths):
        assert codecs.readable(json.loads(encode_result(value))) == value
        job = tasks.noop.enqueue()
        Job.objects.filter(pk=job.pk).update(result=json.loads(encode_result(value)))
        assert Job.objects.get(pk=job.pk).result == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\u2028😀"),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from([CODEC, "data", "a"]), children, max_size=3)
    ),
    max_leaves=8,
)


@given(value=JSON, paths=st.sampled_from([[], [HIDDEN], [COMPRESSED], [None, HIDDEN], [OTHER, HIDDEN]]))
def test_encode_result_any_value_comes_back_equal(value, paths):
    with codecs_are(*paths), connection.cursor() as cursor:
        cursor.execute("SELECT %s::json::text", [encode_result(value)])
        assert codecs.readable(json.loads(cursor.fetchone()[0])) == value


# ------------------------------------------------------------------ limits and errors


def test_limits_apply_before_the_codec():
    with codecs_are(COMPRESSED, MAX_ARGUMENTS_BYTES=1000, MAX_RESULT_BYTES=1000):
        text = "x" * 2000  # compressed, it would be short enough
        for call in (
            lambda: encode_arguments([text], {}),
            lambda: encode_result(text),
            lambda: list(chunks([normalise_call([text], {})])),
        ):
            with pytest.raises(ValueError, match="bytes of JSON"):
                call()
    with codecs_are(HIDDEN, MAX_ARGUMENTS_BYTES=1000, MAX_RESULT_BYTES=1000):
        text = "x" * 900  # encoded, it is longer than the limit
        assert len(encode_arguments([text], {})) > 1000
        assert len(encode_result(text)) > 1000
        [element] = json.loads(next(chunks([normalise_call([text], {})])))
        assert decode_arguments(json.dumps(element)) == ([text], {})


@pytest.mark.promise("large-rows")
def test_codec_envelope_larger_than_a_row_may_be_is_refused(monkeypatch):
    """Workers would not read the arguments."""
    with codecs_are(HIDDEN):
        monkeypatch.setattr(conf.Settings, "most_stored_bytes", 1000)
        assert echo.enqueue("x" * 500).pk
        for call in (
            lambda: echo.enqueue("x" * 900),
            lambda: echo.enqueue_many([(("x" * 900,), {})]),
            lambda: encode_result("x" * 900),
        ):
            with pytest.raises(ValueError, match="more than the 1,000 that a worker reads"):
                call()
    assert Job.objects.count() == 1


def test_chunks_with_codec_keep_the_order_of_calls():
    calls = [normalise_call([number], {}) for number in range(45)]
    with codecs_are(HIDDEN):
        [text] = chunks(calls)
        assert [decode_arguments(json.dumps(each)) for each in json.loads(text)] == [([n], {}) for n in range(45)]


@pytest.mark.parametrize(
    "path", ["tests.app.codecs.Broken", "tests.app.codecs.Panics", "tests.app.codecs.NotText"], ids=str
)
def test_codec_that_cannot_encode_refuses_the_call(path, django_assert_num_queries):
    with codecs_are(path):
        for call in (
            lambda: echo.enqueue(SECRET),
            lambda: echo.using(unique_key="k").enqueue(SECRET),
            lambda: framework_tasks.add.enqueue(SECRET),
        ):
            with django_assert_num_queries(0), pytest.raises(ValueError, match="cannot encode the value") as refused:
                call()
            assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r}"
            assert refused.value.__suppress_context__
        with pytest.raises(ValueError, match="cannot encode the value"):
            echo.enqueue_many([((SECRET,), {})])
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("codec", "problem"),
    [("Broken", "'broken' cannot encode the value: it raised RuntimeError"), ("Panics", "it raised Panic")],
)
def test_codec_that_cannot_encode_result_makes_job_dead(codec, problem):
    job = echo.using(max_attempts=3).enqueue(SECRET, "!")
    with codecs_are(f"tests.app.codecs.{codec}"):
        run_jobs()
    job.refresh_from_db()
    execution = job.executions.get()
    assert (job.state, execution.exception_class) == ("dead", f"{ResultNotStored.__module__}.ResultNotStored")
    assert problem in execution.error
    assert SECRET not in f"{execution.error} {execution.traceback}"


@pytest.mark.parametrize(
    "envelope",
    [
        {CODEC: "hidden", "data": "***"},
        {CODEC: "hidden", "data": None},
        {CODEC: "hidden", "data": {"a": 1}},
        {CODEC: 7, "data": ""},
        {CODEC: ["hidden"], "data": ""},
        {CODEC: "x\n\u202e" * 1000, "data": ""},
        {CODEC: "not-text", "data": ""},
        {CODEC: "broken", "data": "AAAA"},
        {CODEC: "panics", "data": "AAAA"},
        {CODEC: "", "data": "/w=="},
        {CODEC: "", "data": "ew=="},
    ],
)
def test_hostile_envelope_harms_nothing(envelope):
    with codecs_are(HIDDEN, *(f"tests.app.codecs.{name}" for name in ("NotText", "Broken", "Panics"))):
        found = codecs.readable(envelope)
        assert isinstance(found, EncodedValue)
        assert found.problem.isprintable() and len(found.problem) < 200
        job = tasks.add.enqueue(1)
        Job.objects.filter(pk=job.pk).update(arguments=envelope)
        run_jobs()
        job.refresh_from_db()
        assert job.state == "ready" and job.unknown_since is not None
        assert isinstance(job.arguments, EncodedValue)


def test_stop_of_the_worker_passes_through_a_codec(monkeypatch):
    """A timeout that is raised in the thread of a job while its codec runs is not an error of the codec."""

    def interrupted(self, data):
        raise TaskTimeout

    with codecs_are(HIDDEN):
        envelope = json.loads(encode_result("x"))
        for name in ("encode", "decode"):
            monkeypatch.setattr(Hidden, name, interrupted)
        with pytest.raises(TaskTimeout):
            codecs.encode('"x"')
        with pytest.raises(TaskTimeout):
            codecs.decode(envelope)


def test_invalid_codecs_do_not_break_a_query_of_jobs():
    with codecs_are(HIDDEN):
        job = echo.enqueue(SECRET, "!")
    with codecs_are("tests.app.codecs.NoKey"):
        found = Job.objects.get(pk=job.pk)
        assert isinstance(found.arguments, EncodedValue)
        assert "encoded by 'hidden', but PGQUEUE['CODECS'] names 'tests.app.codecs.NoKey'" in found.arguments.problem
        run_jobs()
    found.refresh_from_db()
    assert (found.state, found.attempt) == ("ready", 0) and found.unknown_since is not None


def test_codec_of_text_finds_the_name_also_if_it_was_cut():
    text = seal("hidden", b"x" * 1000)
    assert codec_of(text) == codec_of(text[:100]) == codec_of(text.replace('{"', '{ "')[:90]) == "hidden"
    for plain in ('{"args":[],"kwargs":{}}', '{"a": {"pgqueue_codec": "hidden", "data": ""}}', "[", "1", '"x"', ""):
        assert codec_of(plain) is None
    assert is_envelope(json.loads(text)) and not is_envelope([text])
    assert not is_envelope({**json.loads(text), "more": 1}) and not is_envelope({CODEC: "hidden"})


# ------------------------------------------------------------------ the setting


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["tests.app.codecs.Missing"], "cannot be imported"),
        (["tests.app.absent.Hidden"], "cannot be imported"),
        (["Hidden"], "cannot be imported"),
        (["tests.app.codecs.not_a_class"], "it must be a class"),
        (["tests.app.codecs.Nameless"], "its name is None"),
        (["tests.app.codecs.Coroutines"], r"encode\(\) must not be a coroutine function"),
        (["tests.app.codecs.NoDecode"], r"no method decode\(\)"),
        (["tests.app.codecs.Raises"], "cannot be instantiated: ValueError$"),
        ([HIDDEN, "tests.app.codecs.WrongKey"], "two codecs with one name"),
    ],
)
def test_check_codecs_invalid_codec_is_an_error(paths, problem):
    with codecs_are(*paths):
        with pytest.raises(ImproperlyConfigured, match=problem):
            codecs.project_codecs()
        assert "pgqueue.E010" in [message.id for message in run_checks()]


@pytest.mark.parametrize("value", ["tests.app.codecs.Hidden", [1], [HIDDEN, None], [None, None], None, {HIDDEN}])
def test_setting_codecs_invalid_value_is_an_error(value):
    with override_settings(PGQUEUE={"CODECS": value}):
        assert "pgqueue.E001" in [message.id for message in run_checks()]
        assert "pgqueue.E010" not in [message.id for message in run_checks()]


@pytest.mark.parametrize("value", [[], (), [None], [None, HIDDEN], (HIDDEN, OTHER)])
def test_setting_codecs_valid_value_is_accepted(value):
    with override_settings(PGQUEUE={"CODECS": value}):
        assert not {"pgqueue.E001", "pgqueue.E010"} & {message.id for message in run_checks()}
        assert codecs.project_codecs().by_name.keys() <= {"hidden", "other"}
