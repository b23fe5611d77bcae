"""The SQL statements of the package by name, for tests that read all of them or replace one."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest

from django_pgqueue import lifecycle, sql
from django_pgqueue.db import prepared
from django_pgqueue.stats import (
    batch_counts,
    fleet,
    incident_groups,
    ownership,
    past_acts,
    paused_jobs,
    queries,
    rollup_queries,
    schedule_runs,
    search_keys,
    suspended,
    used_names,
)
from django_pgqueue.stats.causes import queries as cause_queries
from django_pgqueue.stats.graphs import queries as graph_queries
from django_pgqueue.stats.limits import key_queries, ready
from django_pgqueue.stats.limits import lanes as limited_lanes
from django_pgqueue.stats.limits import queries as limit_queries

MODULES: Final[dict[str, ModuleType]] = {
    name: module
    for module in map(vars(sql).get, sql.__all__)
    if isinstance(module, ModuleType)
    for name, text in vars(module).items()
    if isinstance(text, str) and text.startswith("/* pgqueue:")
}
"""The module of each statement. The other texts are clauses that statements share."""
STATEMENTS: Final[dict[str, str]] = {name: getattr(module, name) for name, module in MODULES.items()}

READING: Final[dict[str, str]] = {
    name: text
    for module in (
        batch_counts,
        graph_queries,
        used_names,
        queries,
        limited_lanes,
        ready,
        limit_queries,
        key_queries,
        rollup_queries,
        fleet,
        suspended,
        incident_groups,
        ownership,
        past_acts,
        paused_jobs,
        schedule_runs,
        search_keys,
        cause_queries,
    )
    for name, text in vars(module).items()
    if isinstance(text, str) and text.startswith("/* pgqueue:")
}
"""The statements of `stats`, which the functions of `lifecycle` do not run."""


def replace_statement(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setattr(MODULES[name], name, text)


def replace_execute(monkeypatch: pytest.MonkeyPatch, execute: Callable[..., Any]) -> None:
    """Make every module of `lifecycle` run its statements with another function, prepared ones too."""
    for module in (*vars(lifecycle).values(), prepared):
        if isinstance(module, ModuleType) and hasattr(module, "execute"):
            monkeypatch.setattr(module, "execute", execute)
