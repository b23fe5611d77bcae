"""The pages *Coming from* name signals and options of this package that exist."""

import re

import pytest
from django.dispatch import Signal

import django_pgqueue
from django_pgqueue import signals
from tests.documents import PAGES, table

CELERY = "docs/coming_from/celery.md"
SIGNALS = {name for name, value in vars(signals).items() if isinstance(value, Signal)}


def test_celery_page_maps_each_signal_to_one_that_exists():
    mapped = {name: here for name, here in table(CELERY, "Celery") if re.match(r"`(task|worker|before)_\w+`", name)}
    named = {name for here in mapped.values() for name in re.findall(r"\b((?:job|worker)_\w+)", here)}
    assert {"job_dead", "job_succeeded", "worker_started", "worker_process_stopping"} <= named <= SIGNALS
    theirs = " ".join(mapped)
    for signal in ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry", "task_revoked"):
        assert signal in theirs


@pytest.mark.parametrize("word", ["link_error", "update_state", "task_postrun", '"expires"', '"queue"', '"priority"'])
def test_celery_page_covers_word(word):
    assert any(word in row[0] for row in (*table(CELERY, "Celery"), *table(CELERY, "Celery beat")))


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/coming_from/")])
def test_imports_on_page_exist(page):
    """The blocks of the other queue are not run, but those that import this package name what exists."""
    for names in re.findall(r"^from django_pgqueue import (.+)$", PAGES[page], re.MULTILINE):
        assert all(hasattr(django_pgqueue, name.strip()) for name in names.split(","))
