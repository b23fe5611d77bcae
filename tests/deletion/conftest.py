"""Models of a project that refer to jobs, executions and batches, in the registry of apps during one test only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.apps import apps
from django.db import connection, models
from django.test import override_settings

from django_pgqueue.models import Execution, Job, JobBatch
from django_pgqueue.tasks import registry
from tests.graphs import conftest as of_graphs
from tests.graphs import tasks as graph_tasks
from tests.steps import conftest as of_steps
from tests.steps import tasks as step_tasks

Refer = Callable[..., type[models.Model]]


@pytest.fixture
def known_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the tasks of the tests of workflows and of steps known."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **of_graphs.OWN, **of_steps.OWN})
    monkeypatch.setattr(registry, "_limits", None)
    monkeypatch.setattr(registry, "_chunk_keys", None)
    step_tasks.CODE.clear()
    step_tasks.LOG.clear()
    with override_settings(PGQUEUE={"TASK_MODULES": [graph_tasks.__name__, step_tasks.__name__]}):
        yield


@pytest.fixture
def refer(db: None) -> Iterator[Refer]:
    """Return a function that makes a model with a foreign key to a model of the queue, and its table."""
    names: list[str] = []

    def make(to: type[models.Model] = Job, on_delete: object = models.CASCADE, **options: object) -> type[models.Model]:
        meta = type("Meta", (), {"app_label": "app"})
        key = models.ForeignKey(to, on_delete=on_delete, related_name="+", **options)  # type: ignore[arg-type]
        name = f"Refers{len(names)}"
        model = type(name, (models.Model,), {"Meta": meta, "__module__": __name__, "row": key})
        names.append(name.lower())
        with connection.schema_editor() as editor:
            editor.create_model(model)
        return model

    yield make
    for name in names:
        del apps.all_models["app"][name]
    apps.clear_cache()
    for model in (Job, JobBatch, Execution):
        model._meta._expire_cache()  # type: ignore[union-attr]  # private
