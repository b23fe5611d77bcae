"""The arguments of a job by the names of the task's parameters, as its page shows them.

`job_page` calls it with the text that `private` has made for the user, so sensitive values are hidden before they get
here. The page *Incidents* needs the names too. If the process does not know the task, or the text was cut or written by
hand, the page shows the stored text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from typing import Any

from django_pgqueue.admin.call_values import parameters_of
from django_pgqueue.display import Shown, pretty_json, visible
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import BY_POSITION


def named_call(task_name: str, shown: Shown) -> list[tuple[str, str]]:
    """Return the name and the value of each argument, in the order of the call; empty if they have no names."""
    if registry.get(task_name) is None or not shown.text:
        return []
    with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError):
        call = json.loads(shown.text)
        names = names_of_positions(task_name)
        values = chain(((next(names), value) for value in call["args"]), call["kwargs"].items())
        return [(visible(str(name)), _text(value)) for name, value in values]
    return []


def names_of_positions(task_name: str) -> Iterator[str]:
    """Return the names of the positional arguments of a task, and numbers for further ones."""
    task = registry.get(task_name)
    parameters = parameters_of(task) if task is not None else []
    names = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    return chain(names, (f"*{number}" for number in count(len(names) + 1)))


def _text(value: Any) -> str:
    return pretty_json(json.dumps(value, ensure_ascii=False))
