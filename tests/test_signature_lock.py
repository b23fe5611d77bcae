"""The lock file of signatures: its text, and what changes it finds between the old code and the new."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Annotated, Any

import pytest
from django.core.management import CommandError, call_command

from django_pgqueue.deploys import signature_lock
from django_pgqueue.deploys.signature_lock import changes, dump, load, locks_of
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import TaskContext
from django_pgqueue.tasks.definition import TaskDefinition


def charge(order_id: int, currency: str = "EUR", *, note: str | None = None) -> None: ...
def notify(context: TaskContext, *users: int, **options: str) -> None: ...
def plain(): ...


def task(func: Callable[..., Any], name: str = "shop.charge", **options: Any) -> TaskDefinition:
    return TaskDefinition(func=func, name=name, **options)


TEXT = """\
{
  "version": 1,
  "tasks": {
    "shop.charge": [
      {"name": "order_id", "annotation": "int", "kind": "any", "required": true},
      {"name": "currency", "annotation": "str", "kind": "any", "required": false},
      {"name": "note", "annotation": "str | None", "kind": "keyword", "required": false}
    ],
    "shop.notify": [
      {"name": "users", "annotation": "int", "kind": "*", "required": false},
      {"name": "options", "annotation": "str", "kind": "**", "required": false}
    ],
    "shop.plain": []
  }
}
"""


def test_dump_has_a_line_for_each_parameter_and_is_sorted():
    tasks = [task(plain, "shop.plain"), task(notify, "shop.notify", takes_context=True), task(charge)]
    assert dump(locks_of(tasks)) == TEXT
    assert load(TEXT) == locks_of(tasks)
    assert load(dump({})) == {}


def test_dump_of_annotation_object_has_no_address():
    def func(value: Any) -> None: ...

    func.__qualname__ = "func"  # a task must be at the level of a module
    func.__annotations__["value"] = Annotated[int, object()]
    [[parameter]] = locks_of([task(func)]).values()
    assert parameter.annotation.endswith("<object object>]")


def lock(source: str) -> signature_lock.Locks:
    """Return the lock of one task with these parameters."""
    namespace: dict[str, Any] = {}
    exec(f"def charge({source}): pass", namespace)  # noqa: S102 -- our own text
    return locks_of([task(namespace["charge"])])


CHANGES = [
    ("a", "a, b", "new_required_parameter"),
    ("a", "a, b=1", None),
    ("a, b=1", "a, b", "required_parameter"),
    ("a, b", "a, b=1", None),
    ("a, b", "a", "removed_parameter"),
    ("a, *, b", "a, **more", None),
    ("a, b", "a, **more", "removed_parameter"),
    ("a, b", "a, *more, **others", None),
    ("a, *b", "a", "removed_parameter"),
    ("a, b=1", "a, c=1, b=1", "changed_place"),
    ("b, a", "c=1, b=1, a=1", "changed_place"),
    ("a, b", "a, *, b", "changed_kind"),
    ("a, /, b", "a, b, /", "changed_kind"),
    ("a, *, b", "a, b", None),
    ("a: 'int'", "a: 'str'", "changed_annotation"),
    ("a", "a: 'str'", "changed_annotation"),
]


@pytest.mark.parametrize(("old", "new", "code"), CHANGES)
def test_changes_of_parameters_are_found(old, new, code):
    found = changes(lock(old), lock(new), lambda name: name)
    assert {each.code for each in found} == ({code} - {None})


@pytest.mark.parametrize(("old", "new", "code"), CHANGES)
def test_changes_that_are_errors_break_a_call(old, new, code):
    """Each error is about a call that the old function accepts and the new one refuses, or reads in another way."""
    functions: list[Any] = []
    for source in (old, new):
        namespace: dict[str, Any] = {}
        exec(f"def charge({source}): return {{**locals()}}", namespace)  # noqa: S102 -- our own text
        functions.append(namespace["charge"])
    calls = [(args, kwargs) for args in ((), (1,), (1, 2)) for kwargs in ({}, {"b": 3}, {"a": 1}, {"a": 1, "b": 3})]
    broken = False
    for args, kwargs in calls:
        try:
            before = functions[0](*args, **kwargs)
        except TypeError:
            continue
        try:
            after = functions[1](*args, **kwargs)
        except TypeError:
            broken = True
        else:
            broken |= any(after[name] != value for name, value in before.items() if name in after and name in "ab")
    assert broken == (code not in (None, "changed_annotation"))


def test_changes_of_tasks_follow_aliases(monkeypatch):
    renamed = task(charge, "shop.bill", aliases=("shop.charge",))
    monkeypatch.setattr(registry, "_tasks", dict.fromkeys(("shop.bill", "shop.charge"), renamed))
    new = locks_of([renamed])
    assert changes(locks_of([task(charge)]), new) == []
    [gone] = changes(locks_of([task(charge, "shop.refund")]) | new, new)
    assert (gone.code, gone.is_warning) == ("unknown_task", False)
    assert gone.text.startswith("shop.refund is gone: add its name as an alias")
    [added] = changes({}, new)
    assert (added.code, added.is_warning) == ("not_locked", True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a lock file"),
        ("[]", "not a lock file"),
        ('{"version": 1, "tasks": {"a": [{}]}}', "not a lock file"),
        ('{"version": 2, "tasks": {}}', "version 2"),
        (
            '{"version": 1, "tasks": {"a": [{"name": "b", "kind": "?", "required": true, "annotation": ""}]}}',
            "unknown kinds",
        ),
    ],
)
def test_load_refuses_other_texts(text, says):
    with pytest.raises(ValueError, match=says):
        load(text)


def test_command_compares_a_file_without_the_database(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {"shop.charge": task(charge)})
    path, out = tmp_path / "signatures.json", StringIO()
    call_command("pgqueue", "check-deploy", "--write-lock", str(path), stdout=out)
    assert out.getvalue() == f"Wrote the signatures of 1 task to {path}.\n"
    call_command("pgqueue", "check-deploy", "--lock", str(path), stdout=StringIO())

    path.write_text(path.read_text().replace('"currency"', '"coin"'))
    out = StringIO()
    with pytest.raises(SystemExit) as exited:
        call_command("pgqueue", "check-deploy", "--lock", str(path), "--json", stdout=out)
    assert exited.value.code == 1
    document = json.loads(out.getvalue())
    assert document["lock"] == {"file": str(path), "tasks": 1}
    assert {each["code"] for each in document["findings"]} == {"removed_parameter"}


def test_command_only_annotation_changed_fails_with_strict(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {"shop.charge": task(charge)})
    path = tmp_path / "signatures.json"
    path.write_text(dump(locks_of([task(charge)])).replace('"int"', '"str"'))
    out = StringIO()
    call_command("pgqueue", "check-deploy", "--lock", str(path), stdout=out)
    assert out.getvalue().startswith("warning: shop.charge has another annotation of `order_id`: it was `str` and is")
    with pytest.raises(SystemExit):
        call_command("pgqueue", "check-deploy", "--lock", str(path), "--strict", stdout=out)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lock", "/nowhere/file"], "cannot be read: No such file"),
        (["--lock", "a", "--write-lock", "b"], "either --lock or --write-lock"),
        (["--limit", "0"], "Invalid --limit 0"),
    ],
)
def test_command_invalid_options_are_refused(options, says):
    with pytest.raises(CommandError, match=says) as refused:
        call_command("pgqueue", "check-deploy", *options)
    assert refused.value.returncode == 2
