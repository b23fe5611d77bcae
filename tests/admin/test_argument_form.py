"""The form of a call: its fields, what it reads from them, and what it leaves as it is stored."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal
from uuid import UUID

import pytest

from django_pgqueue import task
from django_pgqueue.admin.call_values import StoredArguments, differences
from django_pgqueue.admin.forms.argument_form import ArgumentForm
from django_pgqueue.tasks.definition import TaskDefinition
from tests.app import tasks
from tests.arguments import tasks as typed
from tests.arguments.conftest import tables  # noqa: F401 -- a fixture
from tests.arguments.models import Parcel
from tests.arguments.types import Kind

pytestmark = pytest.mark.slow


@task
def choose(
    flag: bool, kind: Kind, size: Literal["s", "m", 3], note: str | None = None, day: date | None = None
) -> None:
    """Take arguments with few values."""


@task
def text(message: str = "hi", /, *more: str, ending: str, **others: int) -> None:
    """Take text in every way."""


@task
def resize(sizes: tuple[Any, ...] = (100, "é")) -> None:
    """Take a tuple."""


@task(sensitive=["token"])
def secret(user: str, token: str = "none") -> None:  # noqa: S107 -- a test needs one
    """Take a sensitive argument."""


def form_of(
    of: TaskDefinition, data: dict[str, str] | None = None, stored: StoredArguments | None = None
) -> ArgumentForm:
    return ArgumentForm(data, task=of, database="default", stored=stored)


def as_sent(form: ArgumentForm) -> dict[str, str]:
    """Return what a browser sends for the form as it is shown: line ends as CRLF."""
    values = {name: str(form[name].value()) for name in form.fields}
    return {
        name: value.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n") for name, value in values.items()
    }


def call(form: ArgumentForm) -> tuple[list[Any], dict[str, Any]]:
    assert form.is_valid(), form.errors
    return list(form.cleaned_call.args), dict(form.cleaned_call.kwargs)


UNCHANGED: list[tuple[TaskDefinition, list[Any], dict[str, Any]]] = [
    (tasks.add, [1], {}),
    (tasks.add, [1], {"b": 2}),
    (tasks.add, [], {"b": 2, "a": 1}),
    (tasks.noop, [1, [2, {"a": "\r\n\0"[:2]}]], {"x": None, "y": 1.0}),
    (tasks.fail, [""], {}),
    (tasks.fail, ['"quoted"'], {}),
    (tasks.fail, ["two\nlines\n"], {}),
    (tasks.fail, ["\nfirst\r\n\u202eright"], {}),
    (tasks.fail, [" "], {}),
    (tasks.fail, ["null"], {}),
    (tasks.attempt_number, [], {}),
    (choose, [True, "card", 3], {"note": None}),
    (choose, [False, "card", "s", None, "2026-01-31"], {}),
    (choose, [False, "card", "s", None, None], {}),
    (choose, [False, "card", "s", "x"], {"day": "20260131"}),
    (text, ["a", "b", ""], {"ending": "null", "x": 1}),
    (text, [], {"ending": "e"}),
    (
        typed.charge,
        [str(UUID(int=1)), "9.90", "2026-01-31T08:00:00+00:00", [{"sku": "x", "price": "1.50", "total": "0"}]],
        {"kind": "card"},
    ),
    (typed.charge, [str(UUID(int=1)), 9.9, "2026-01-31T08:00:00+00:00", []], {"note": "a"}),  # stored by earlier code
    (typed.collect, ["2026-01-31", "2026-02-01", "2026-02-02"], {"until": "2026-03-01", "label": "x"}),
    (typed.daily, ["2026-01-31"], {"wait": 90.5}),
]


@pytest.mark.quick
@pytest.mark.parametrize(("of", "args", "kwargs"), UNCHANGED)
def test_form_unchanged_fields_keep_the_stored_call(
    of: TaskDefinition, args: list[Any], kwargs: dict[str, Any]
) -> None:
    stored = StoredArguments(args, kwargs)
    read = call(form_of(of, as_sent(form_of(of, stored=stored)), stored))
    assert read == (args, kwargs)
    assert [type(each) for each in read[0]] == [type(each) for each in args]
    assert not differences(of, stored, StoredArguments(*read))


READ: list[tuple[TaskDefinition, dict[str, str], list[Any], dict[str, Any]]] = [
    (tasks.add, {"a": "5"}, [], {"a": 5}),
    (tasks.add, {"a": " 5 ", "b": "-1"}, [], {"a": 5, "b": -1}),
    (tasks.fail, {"message": ""}, [], {}),
    (tasks.fail, {"message": '""'}, [], {"message": ""}),
    (tasks.fail, {"message": " a "}, [], {"message": " a "}),
    (tasks.fail, {"message": "a\r\nb"}, [], {"message": "a\nb"}),
    (tasks.noop, {"args": "[1, null]", "kwargs": '{"a": {"b": 1}}'}, [1, None], {"a": {"b": 1}}),
    (choose, {"flag": "false", "kind": '"card"', "size": "3"}, [], {"flag": False, "kind": "card", "size": 3}),
    (
        choose,
        {"flag": "true", "kind": '"card"', "size": '"m"', "note": "n", "day": "2026-01-31"},
        [],
        {"flag": True, "kind": "card", "size": "m", "note": "n", "day": "2026-01-31"},
    ),
    (text, {"message": "a", "more": '["b"]', "ending": "c", "others": '{"d": 1}'}, ["a", "b"], {"ending": "c", "d": 1}),
    (text, {"message": "a", "ending": "c"}, ["a"], {"ending": "c"}),
    (typed.collect, {"first": "2026-01-31", "days": '["2026-02-01"]'}, ["2026-01-31", "2026-02-01"], {}),
    (typed.daily, {"day": "2026-01-31", "wait": "01:30:00"}, [], {"day": "2026-01-31", "wait": "01:30:00"}),
    (secret, {"user": "u", "token": "t"}, [], {"user": "u", "token": "t"}),
]


@pytest.mark.parametrize(("of", "fields", "args", "kwargs"), READ)
def test_form_reads_each_field_by_its_annotation(
    of: TaskDefinition, fields: dict[str, str], args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert call(form_of(of, {f"argument-{name}": value for name, value in fields.items()})) == (args, kwargs)


REFUSED: list[tuple[TaskDefinition, dict[str, str], str, str]] = [
    (tasks.add, {}, "a", "This field is required"),
    (tasks.add, {"a": "x"}, "a", "Enter a number"),
    (tasks.add, {"a": "1.5"}, "a", "The value must be int, not float"),
    (tasks.add, {"a": "1" * 5000}, "a", "Enter a number"),
    (tasks.fail, {"message": '"open'}, "message", "Invalid JSON"),
    (tasks.fail, {"message": "nul \0"}, "message", "Null characters are not allowed"),
    (tasks.fail, {"message": '"\\u0000"'}, "message", "NUL character"),
    (tasks.fail, {"message": '"\\ud800"'}, "message", "lone surrogate"),
    (tasks.noop, {"args": "{}"}, "args", "The value must be a JSON list"),
    (tasks.noop, {"args": "[NaN]"}, "args", "nan, which JSON cannot represent"),
    (tasks.noop, {"kwargs": "[]"}, "kwargs", "The value must be a JSON object"),
    (tasks.noop, {"args": "[" * 20_000}, "args", "Invalid JSON"),
    (tasks.noop, {"args": "[" * 200 + "]" * 200}, "args", "nested more than 100 deep"),
    (tasks.noop, {"args": f'["{"x" * 300_000}"]'}, "__all__", "store the data and pass its id"),
    (choose, {"flag": "maybe", "kind": '"card"', "size": "3"}, "flag", "Choose one of the values"),
    (choose, {"flag": "true", "kind": '"gold"', "size": "3"}, "kind", "Choose one of the values"),
    (choose, {"flag": "true", "kind": '"card"', "size": "3", "day": "2026-02-30"}, "day", "must be date"),
    (text, {"more": '["b"]', "ending": "c"}, "__all__", "*more can be passed only together with message"),
    (text, {"ending": "c", "others": '{"a": "b"}'}, "others", "The value.a must be int, not str"),
    (text, {"ending": "c", "others": '{"ending": "d"}'}, "__all__", "contains ending, which has a field of its own"),
    (typed.collect, {"first": "2026-01-31", "days": '["x"]'}, "days", "The value[0] must be date."),
    (typed.charge, {"order_id": "1", "amount": "x", "at": "now", "lines": "[]"}, "order_id", "The value must be UUID."),
    (
        typed.charge,
        {"order_id": "1", "amount": "x", "at": "now", "lines": "[]"},
        "amount",
        "The value must be Decimal.",
    ),
]


@pytest.mark.parametrize(("of", "fields", "name", "words"), REFUSED)
def test_form_shows_each_error_at_its_field(of: TaskDefinition, fields: dict[str, str], name: str, words: str) -> None:
    form = form_of(of, {f"argument-{each}": value for each, value in fields.items()})
    assert not form.is_valid()
    assert words in str(form.errors[name if name == "__all__" else f"argument-{name}"].as_text())


def test_form_labels_state_the_types_and_help_states_the_default() -> None:
    fields = form_of(choose).fields
    labels = [field.label for field in fields.values()]
    assert labels[0] == "flag: bool" and labels[3] == "note: str | None"
    assert fields["argument-note"].help_text.endswith("Leave it empty for the default: None.")
    assert [field.label for field in form_of(typed.collect).fields.values()][1] == "*days: date"


def test_form_shows_a_default_as_it_would_be_written() -> None:
    help_text = form_of(resize).fields["argument-sizes"].help_text
    assert help_text.endswith('Leave it empty for the default: [100, "é"].')


def test_form_never_shows_a_sensitive_value() -> None:
    form = form_of(secret, {"argument-user": "u", "argument-token": "hunter2"})
    page = str(form)
    assert "hunter2" not in page and 'type="password"' in page and "default" not in page


def test_form_a_stored_call_that_no_longer_fits_states_what_is_left_out() -> None:
    stored = StoredArguments([1, 2, 3], {"currency": "EUR", "a": 4})
    form = form_of(tasks.add, as_sent(form_of(tasks.add, stored=stored)), stored)
    assert form.stored.unfit == {"argument 3": 3, "currency": "EUR", "a": 4}
    assert call(form) == ([1, 2], {})


@pytest.mark.usefixtures("tables")
def test_form_takes_a_primary_key_of_an_existing_row() -> None:
    parcel = Parcel.objects.create()
    form = form_of(typed.deliver, {"argument-parcel": str(parcel.pk)})
    assert call(form) == ([], {"parcel": str(parcel.pk) if isinstance(parcel.pk, UUID) else parcel.pk})
    missing = form_of(typed.deliver, {"argument-parcel": str(UUID(int=7)), "argument-courier": "x"})
    assert missing.errors["argument-parcel"] == ["There is no parcel with this primary key."]
    assert missing.errors["argument-courier"] == ["There is no courier with this primary key."]
    wrong = form_of(typed.deliver, {"argument-parcel": "7"})
    assert wrong.errors["argument-parcel"] == ["This is not a primary key of Parcel."]


def test_differences_are_by_argument_and_cut() -> None:
    before, after = StoredArguments([1], {"x": "a" * 5000}), StoredArguments([2, 3], {"x": "b"})
    assert differences(tasks.noop, before, after) == {"args": ["[1]", "[2, 3]"], "x": [f'"{"a" * 999}…', '"b"']}
    assert differences(tasks.add, StoredArguments([1], {}), StoredArguments([], {"a": 1, "b": 0})) == {"b": [None, "0"]}
