"""The parameters of a function whose annotations are not defined at run time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from django_pgqueue.ground import signatures
from django_pgqueue.task import Task

SOURCE = "def charge(price: Later, at: int = 0) -> Later: ..."


def test_signature_has_parameters_and_raw_annotations():
    def charge(price: Later, at: int = 0) -> None: ...  # type: ignore[name-defined]  # noqa: F821 -- what is tested

    assert list(signatures.signature_of(charge).parameters) == ["price", "at"]
    assert list(signatures.raw_annotations(charge)) == ["price", "at", "return"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="earlier versions evaluate annotations when they see them")
def test_task_with_undefined_annotation_is_created():
    names: dict[str, Any] = {"__name__": "tests.app.tasks"}
    exec(compile(SOURCE, "charge", "exec", dont_inherit=True), names)  # noqa: S102 -- our own text
    task: Task[Any, Any] = Task(func=names["charge"])
    assert list(task.func_signature.parameters) == ["price", "at"]
    assert task.plan is None
