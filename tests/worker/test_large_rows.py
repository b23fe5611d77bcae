"""Test rows that have more arguments or headers than a worker reads, because a program added them by SQL."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import claims, limits
from django_pgqueue.lifecycle.limits import KeyToClaim
from django_pgqueue.lifecycle.types import Cursor, Lane
from django_pgqueue.models import Execution, Job
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks

MOST = get_settings().most_stored_bytes
ROW = (
    "INSERT INTO pgqueue_job (task_name, arguments, headers, limit_key) "
    "VALUES (%s, ({})::json, ({})::json, %s) RETURNING id"
)
CALL = """'{"args":[],"kwargs":{"filler":"' || %(filler)s || '"}}'"""
FILLERS = {  # as SQL: the first is stored compressed, in the row itself or beside it, the second out of line
    "compressed": "repeat('x', %(size)s)",
    "out of line": "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, %(size)s / 32 + 1) AS n)",
}
OPTIONS = {"worker_id": 1, "lease_seconds": 60.0}


def text_of(kind, size):
    return CALL % {"filler": FILLERS[kind] % {"size": size}}


def add(*, arguments='\'{"args":[],"kwargs":{}}\'', headers="NULL", limit_key=None, task_name=helpers.NOOP):
    with connection.cursor() as cursor:
        cursor.execute(ROW.format(arguments, headers), [task_name, limit_key])
        return cursor.fetchone()[0]


def claim_plain(**options):
    return claims.claim(connection, {Lane("default", 0): Cursor()}, **OPTIONS, **options)


@pytest.mark.django_db
class TestClaim:
    @pytest.mark.parametrize("kind", FILLERS)
    @pytest.mark.parametrize("free_slots", [4, 1], ids=["slots", "prefetch"])
    def test_claim_of_large_rows_returns_no_arguments(self, kind, free_slots):
        ids = [add(arguments=text_of(kind, 4 * MOST)), add(arguments=text_of(kind, MOST // 2)), add()]
        claimed = claim_plain(limit=4, free_slots=free_slots)
        assert [job.job_id for job in claimed] == ids
        assert [len(job.arguments) for job in claimed] == [0, MOST // 2 + 34 + (kind == "out of line") * 32, 23]

    def test_row_of_the_largest_size_is_returned_whole(self):
        frame = len('{"args":[],"kwargs":{"filler":""}}')
        whole, larger = (add(arguments=text_of("compressed", MOST - frame + more)) for more in (0, 1))
        claimed = {job.job_id: len(job.arguments) for job in claim_plain(limit=2, free_slots=2)}
        assert claimed == {whole: MOST, larger: 0}

    def test_claim_of_one_large_row_returns_no_arguments(self):
        job_id = add(arguments=text_of("out of line", 2 * MOST))
        claimed = claims.claim_one(connection, job_id, **OPTIONS)
        assert claimed is not None and claimed.arguments == ""

    def test_claim_of_large_limited_rows_returns_no_arguments(self):
        ids = [add(arguments=text_of(kind, 2 * MOST), limit_key="narrow:") for kind in FILLERS]
        keys = [KeyToClaim("narrow:", policy_of(Limit("narrow", concurrency=10)), Cursor())]
        lane = Lane("default", 0, is_limited=True)
        claimed = limits.claim_keys(connection, lane, keys, limit=4, free_slots=1, **OPTIONS).claimed
        assert [(job.job_id, job.arguments) for job in claimed] == [(job_id, "") for job_id in ids]

    @pytest.mark.parametrize(("size", "is_returned"), [(16_384, True), (16_385, False)])
    def test_claim_returns_headers_of_16_kb_at_most(self, size, is_returned):
        filler = size - len('{"trace":""}')
        add(headers=f"""'{{"trace":"' || repeat('x', {filler}) || '"}}'""")
        [job] = claim_plain(limit=1, free_slots=1)
        assert len(job.headers or "") == (size if is_returned else 0)


@pytest.mark.django_db
@pytest.mark.promise("large-rows")
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"arguments": text_of("compressed", 2 * MOST)}, f"arguments have more than {MOST:,} bytes"),
        ({"arguments": text_of("out of line", 2 * MOST)}, f"arguments have more than {MOST:,} bytes"),
        ({"headers": text_of("compressed", 20_000)}, "headers have more than 16,384 bytes"),
    ],
)
def test_job_with_a_large_row_is_dead_with_a_reason(row, reason):
    large, others = add(**row), [tasks.noop.enqueue().id for _ in range(3)]
    assert run_jobs() == 4
    assert Job.objects.get(pk=large).state == "dead"
    assert reason in Execution.objects.get(job_id=large).error
    assert set(Job.objects.filter(pk__in=others).values_list("state", flat=True)) == {"succeeded"}


@pytest.mark.django_db
def test_large_row_of_a_higher_setting_runs(settings):
    settings.PGQUEUE = {"MAX_ARGUMENTS_BYTES": MOST}
    job_id = add(arguments=text_of("compressed", 2 * MOST), task_name=helpers.NOOP)
    assert run_jobs() == 1
    assert Job.objects.get(pk=job_id).state == "succeeded"
