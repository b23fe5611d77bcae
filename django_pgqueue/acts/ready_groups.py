"""The permissions of two ready groups: one for support, which only looks, and one for operators, who act.

`manage.py pgqueue permissions` makes the groups. Nothing here names what a group gets: the groups follow from the
models and from the declared acts, so a new act is in the group of operators at once. Only what a group must not get
without a decision of the project is named, with the reason, in `LEFT_OUT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.apps import apps
from django.contrib.auth import get_permission_codename

from django_pgqueue import acts

APP: Final = "pgqueue"
RUNS_ANYTHING: Final = "it lets a user run tasks with any arguments"
LOSES: Final = "what it deletes cannot be restored"
LEFT_OUT: Final = {
    "add_schedule": RUNS_ANYTHING,
    "change_schedule": RUNS_ANYTHING,
    "delete_job": LOSES,
    "delete_schedule": LOSES,
    "edit_and_retry_job": RUNS_ANYTHING,
    "enqueue_job": RUNS_ANYTHING,
    "erase_job": LOSES,
}
"""The permissions that are in no group, and why."""


@dataclass(frozen=True)
class ReadyGroup:
    """A group that the command makes: its name, and the codenames of its permissions."""

    name: str
    codenames: frozenset[str]


def declared() -> dict[str, str]:
    """Return the codenames of all permissions of the app's models, with their names for people, by model."""
    return dict(_declared())


def _declared() -> Iterator[tuple[str, str]]:
    for model in apps.get_app_config(APP).get_models():
        opts = model._meta
        for action in opts.default_permissions:
            yield get_permission_codename(action, opts), f"Can {action} {opts.verbose_name_raw}"
        yield from ((codename, str(label)) for codename, label in opts.permissions)


def support() -> ReadyGroup:
    """Return the group that may view the rows of every model. It sees no arguments, errors or stacks."""
    found = {
        get_permission_codename("view", model._meta)
        for model in apps.get_app_config(APP).get_models()
        if "view" in model._meta.default_permissions
    }
    return ReadyGroup("pgqueue support", frozenset(found))


def operators() -> ReadyGroup:
    """Return the group that may also do every declared act, and view what these acts need, without `LEFT_OUT`."""
    needed = {name.removeprefix(f"{APP}.") for act in _all_acts() for name in act.permissions}
    return ReadyGroup("pgqueue operator", support().codenames | needed - LEFT_OUT.keys())


def _all_acts() -> list[acts.OperatorAct]:
    return [act for act in vars(acts).values() if isinstance(act, acts.OperatorAct)]


def ready_groups() -> tuple[ReadyGroup, ReadyGroup]:
    """Return both groups. The second has all permissions of the first."""
    return support(), operators()
