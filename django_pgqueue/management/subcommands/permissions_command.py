"""`manage.py pgqueue permissions`: list the permissions of the app, and make the two ready groups.

It only adds. A permission that somebody has given to one of these groups by hand stays, and so does the group's list of
users.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction

from django_pgqueue.acts.ready_groups import APP, LEFT_OUT, ReadyGroup, declared, ready_groups

from .output import Column, Output, counted
from .subcommand import Options, Subcommand, UsageError, add_reading

if TYPE_CHECKING:
    from django.contrib.auth.models import Permission


class ListedPermission(NamedTuple):
    """A permission of the app, and the ready groups that have it."""

    codename: str
    allows: str
    groups: list[str]

    def in_groups(self) -> str:
        """Return the groups, or why no group has it."""
        return ", ".join(self.groups) or f"none, because {LEFT_OUT[self.codename]}"


COLUMNS: Final = (
    Column("permission", lambda each: f"{APP}.{each.codename}"),
    Column("allows", lambda each: each.allows, is_flexible=True),
    Column("groups", ListedPermission.in_groups, is_flexible=True),
)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--create-groups",
        action="store_true",
        help="Make the groups, and give them the permissions that they lack. It takes none away.",
    )
    parser.add_argument("--dry-run", action="store_true", help="With --create-groups: print what would change.")
    add_reading(parser, help="Database of the users and groups.")


def _run(options: Options, out: Output) -> None:
    if options["create_groups"]:
        if out.is_json:
            raise UsageError("Pass either --create-groups or --json: --json is for the list of permissions.")
        _create_groups(_alias(options), out, dry_run=options["dry_run"])
    elif options["dry_run"]:
        raise UsageError("--dry-run needs --create-groups: without it, the command changes nothing.")
    else:
        _list_permissions(out)


def _list_permissions(out: Output) -> None:
    groups = ready_groups()
    listed = [
        ListedPermission(codename, allows, [group.name for group in groups if codename in group.codenames])
        for codename, allows in sorted(declared().items())
    ]
    summary = f"{counted(len(listed), 'permission')}. --create-groups makes the groups."
    out.listing("permissions", COLUMNS, listed, summary, _as_json)


def _as_json(listed: ListedPermission) -> dict[str, Any]:
    return {
        "permission": f"{APP}.{listed.codename}",
        "allows": listed.allows,
        "groups": listed.groups,
        "left_out": LEFT_OUT.get(listed.codename),
    }


def _alias(options: Options) -> str:
    """Return `--database`, or the alias that groups are written to."""
    if not apps.is_installed("django.contrib.auth"):
        raise CommandError("Groups need django.contrib.auth in INSTALLED_APPS.")
    from django.contrib.auth.models import Group  # not importable in a project without django.contrib.auth

    alias = options["database"] or router.db_for_write(Group) or DEFAULT_DB_ALIAS
    if alias not in connections:
        raise UsageError(f"DATABASES has no alias {alias!r}: pass --database with one of {', '.join(connections)}.")
    return str(alias)


def _create_groups(alias: str, out: Output, *, dry_run: bool) -> None:
    with transaction.atomic(using=alias):
        permissions = _permissions(alias)
        lines = [line for group in ready_groups() for line in _create(group, permissions, alias, dry_run=dry_run)]
    out.write_lines(lines)
    out.write_lines(f"In no group: {APP}.{codename}, because {reason}." for codename, reason in LEFT_OUT.items())


def _permissions(alias: str) -> dict[str, Permission]:
    """Return the rows of the app's permissions. Raise `CommandError` if `migrate` has not made them all."""
    from django.contrib.auth.models import Permission

    found = {each.codename: each for each in Permission.objects.using(alias).filter(content_type__app_label=APP)}
    if missing := sorted(declared().keys() - found.keys()):
        raise CommandError(
            f"The database {alias!r} lacks the permissions {', '.join(missing)}: run `manage.py migrate` first. "
            f"Nothing was changed."
        )
    return found


def _create(ready: ReadyGroup, permissions: dict[str, Permission], alias: str, *, dry_run: bool) -> list[str]:
    """Make one group, or give it what it lacks. Return what to print about it."""
    from django.contrib.auth.models import Group

    found = Group.objects.using(alias).filter(name=ready.name)
    is_new = not found.exists()
    held = {
        codename if app == APP else f"{app}.{codename}"
        for app, codename in found.filter(permissions__isnull=False).values_list(
            "permissions__content_type__app_label", "permissions__codename"
        )
    }
    lacking, others = sorted(ready.codenames - held), sorted(held - ready.codenames)
    if not dry_run:
        group, _ = Group.objects.using(alias).get_or_create(name=ready.name)
        group.permissions.add(*(permissions[codename] for codename in lacking))
    if not is_new and not lacking:
        lines = [f"The group {ready.name!r} has all its permissions already."]
    else:
        done = ("Would create" if dry_run else "Created") if is_new else ("Would add to" if dry_run else "Added to")
        lines = [f"{done} the group {ready.name!r}: {', '.join(lacking)}."]
    if others:
        lines.append(f"The group {ready.name!r} keeps what somebody else has given it: {', '.join(others)}.")
    return lines


PERMISSIONS: Final = Subcommand(
    "permissions",
    "List the permissions of the admin, or make a group for support and one for operators.",
    _add_arguments,
    _run,
)
