"""Test that a lazy string is refused with a message that says so, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.functional import lazystr

from django_pgqueue import InvalidTask, cron
from django_pgqueue.models import Job
from tests.app import tasks

LAZY: Any = lazystr("x")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("enqueue", "error", "words"),
    [
        (lambda: tasks.noop.enqueue(LAZY), TypeError, r"argument 1 .* lazy string, .*: pass str\(value\)"),
        (lambda: tasks.noop.enqueue([LAZY]), TypeError, r"argument 1\[0\] .* lazy string"),
        (lambda: tasks.noop.enqueue({LAZY: 1}), TypeError, "argument 1 has a key .* lazy string"),
        (lambda: tasks.noop.enqueue_many([(LAZY,)]), TypeError, "lazy string"),
        (lambda: tasks.noop.using(headers={"a": LAZY}).enqueue(), TypeError, "header 'a' .* lazy string"),
        (lambda: tasks.noop.using(unique_key=LAZY).enqueue(), InvalidTask, "unique_key is a lazy string"),
        (lambda: tasks.noop.using(queue_name=LAZY).enqueue(), InvalidTask, "queue_name is a lazy string"),
        (lambda: tasks.noop.using(unique_key=lambda: LAZY).enqueue(), TypeError, "unique_key is a lazy string"),
        (lambda: cron("* * * * *", name=LAZY), ValueError, "name is a lazy string"),
    ],
)
def test_lazy_string_is_refused_with_what_to_pass(enqueue, error, words):
    with pytest.raises(error, match=words):
        enqueue()
    assert not Job.objects.exists()


def test_cron_with_lazy_expression_and_zone_stores_strings():
    expression: Any = lazystr("0 9 * * *")
    zone: Any = lazystr("Europe/Paris")
    times = cron(expression, tz=zone)
    assert (type(times.expression), type(times.time_zone)) == (str, str)
