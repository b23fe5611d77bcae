"""Model fields for JSON and for instants that can be read whatever a row contains, and one for names in migrations.

PostgreSQL accepts values that Python or psycopg cannot represent. The fields for JSON and for instants protect the rule
that one such value must not make a whole list of rows unreadable.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from datetime import timezone as FixedOffset
from typing import TYPE_CHECKING, Any, Final, TypedDict

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Greatest, Least, Now
from django.db.models.lookups import GreaterThanOrEqual, LessThan
from django.utils import timezone

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

FIRST_INSTANT: Final = datetime(1, 1, 3, tzinfo=UTC)
LAST_INSTANT: Final = datetime(9999, 12, 29, tzinfo=UTC)
"""Limits of the instants that any driver can read in any time zone. They exclude infinity, which PostgreSQL 15 and 16
cannot subtract."""


class Unchecked(TypedDict):
    """Options of a foreign key."""

    db_constraint: bool
    db_index: bool


UNCHECKED: Final[Unchecked] = {"db_constraint": False, "db_index": False}
"""The options of a foreign key that the database does not check, and for which it has no index of its own."""


def aware(at: datetime) -> datetime:
    """Return a datetime with a time zone. One without, which Django uses with `USE_TZ = False`, is in `TIME_ZONE`.

    The result has a fixed offset. Python subtracts two times of one named zone by their clock faces, which is wrong
    across a change of clocks.
    """
    if at.tzinfo is not None:
        return at
    offset = timezone.make_aware(at, timezone.get_default_timezone()).utcoffset()
    return at.replace(tzinfo=FixedOffset(offset or timedelta()))


def are_instants(*names: str) -> Q:
    """Return the condition that each of these columns is NULL or an instant that can be read and subtracted.

    Each statement that writes a row parses all checks of the table anew, about 24 instructions for each character of
    their parse trees. LEAST and GREATEST pass over NULL, and need half the text of two comparisons for each column.
    """
    if len(names) == 1:
        return Q((f"{names[0]}__gte", FIRST_INSTANT), (f"{names[0]}__lt", LAST_INSTANT))
    return Q(GreaterThanOrEqual(Least(*names), FIRST_INSTANT), LessThan(Greatest(*names), LAST_INSTANT))


MOST_ID: Final = 2**62
"""Ids are below this number. A sequence that is set behind any id still has half of its numbers left."""
MOST_COUNT: Final = 10**15
"""Counts and seconds are below this number, so that a sum of thousands of them fits each type. NaN is above it."""


def are_numbers(*names: str, least: int = 0, most: int = MOST_ID) -> Q:
    """Return the condition that each of these columns is NULL or a number from `least` on and below `most`."""
    if len(names) == 1:
        return Q((f"{names[0]}__gte", least), (f"{names[0]}__lt", most))
    field = models.BigIntegerField()  # Django refuses to compare columns of several types without it
    lowest, highest = Least(*names, output_field=field), Greatest(*names, output_field=field)
    return Q(GreaterThanOrEqual(lowest, least), LessThan(highest, most))


class Untyped(models.Value):
    """A number without a type, which PostgreSQL reads as one of the type beside it. A typed one needs a cast there."""

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        """Return the number in quotes."""
        return f"'{int(self.value)}'", []


class IsJson(models.Func):
    """Whether the value of a column of JSON is NULL or has this type. Another kind of database checks nothing.

    Args:
        name: The column.
        kind: "object" or "array".
        function: The function of PostgreSQL that returns the type: "jsonb_typeof" for a column of type `jsonb`.
    """

    output_field = models.BooleanField()
    conditional = True
    arity = 1

    def __init__(self, name: str, kind: str, function: str = "json_typeof") -> None:
        super().__init__(models.F(name), template="(%(expressions)s IS NULL OR 1 = 1)")
        self._template = f"{function}(%(expressions)s) = '{kind}'"

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return the text for PostgreSQL."""
        return self.as_sql(compiler, connection, template=self._template, **context)


class OneOf(models.Func):
    """Whether a column has one of some values. PostgreSQL stores it in a third of the text that `IN` takes.

    Args:
        name: The column.
        *values: Words of letters, which need no quotes in an array.
    """

    output_field = models.BooleanField()
    conditional = True
    arity = 1

    def __init__(self, name: str, *values: str) -> None:
        quoted = ", ".join(f"'{value}'" for value in values)
        super().__init__(models.F(name), template=f"%(expressions)s IN ({quoted})")
        self._constant = f"'{{{','.join(values)}}}'"

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return the text for PostgreSQL. `migrate` may also run on a database of another kind, which has no arrays."""
        return self.as_sql(compiler, connection, template=f"%(expressions)s = ANY ({self._constant})", **context)


class NameField(models.CharField):  # type: ignore[type-arg]  # mypy 2.4 crashes if they are given
    """A name in an index, as migrations create it: with the collation "C" on PostgreSQL, without it elsewhere.

    The models have a plain `CharField` with `db_collation="C"`. Such a column sorts by bytes. An upgrade of glibc or
    ICU can change how other collations sort, and searches in an index that was built before then miss rows. A database
    of another kind, which `migrate` may run on too, has no such collation.
    """

    def deconstruct(self) -> Any:
        """Return a plain `CharField`, so that `makemigrations` compares it with the model's field."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Return the type and, on PostgreSQL, the collation of the column."""
        parameters = super().db_parameters(connection)
        return parameters if connection.vendor == "postgresql" else {**parameters, "collation": None}


class PlainJSONField(models.JSONField):
    """JSON stored exactly as it was written, in a column of type `json`.

    `jsonb` would change floats and the order of keys, and its operators are not needed because no query filters on
    these columns. Compared with `jsonb`, claiming and completing ran at 0.96 of the speed with arguments of 60 bytes,
    1.08 with 1 kB, and 1.33 with 10 kB.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return `json`, the PostgreSQL type that keeps the text unchanged."""
        return "json"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Select the column as text, so that a value that cannot be decoded does not fail the whole query."""
        return f"{sql}::text", params

    def from_db_value(self, value: str | None, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the decoded value, or its text if Python cannot decode it (too deep, too many digits)."""
        if value is None:
            return None
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value


class NumbersField(models.Field):  # type: ignore[type-arg]  # mypy 2.4 crashes if they are given
    """An array of whole numbers. Django's own field is in `django.contrib.postgres`, whose app checks need the app."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return `bigint[]`, or text on a database of another kind, which `migrate` may run on too."""
        return "bigint[]" if connection.vendor == "postgresql" else "text"

    def value_to_string(self, obj: models.Model) -> str:
        """Return the numbers as JSON, for `dumpdata`."""
        return json.dumps(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        """Return the numbers, which `loaddata` reads as JSON."""
        return json.loads(value) if isinstance(value, str) else value


if TYPE_CHECKING:
    AwareField = InstantField = models.DateTimeField  # keep the types of Django's field, which a subclass would lose
else:

    class AwareField(models.DateTimeField):
        """A timestamp that is an aware datetime also with `USE_TZ = False`, so that it compares with every other one.

        Django's field reads a naive datetime with that setting.
        """

        def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Any]:
            """Return the function that adds the time zone, if Django reads values without it."""
            return [] if settings.USE_TZ else [lambda value, *_: value and aware(value)]

        def to_python(self, value: Any) -> datetime | None:
            """Return the value with a time zone if Django would compare and store it without."""
            found = super().to_python(value)
            return found if settings.USE_TZ or found is None else aware(found)

    class InstantField(AwareField):
        """A timestamp that can always be read: infinity, or a year that Python lacks, reads as the nearest limit.

        psycopg raises for such a value, so a single row would make the admin's whole list unreadable.
        """

        def deconstruct(self) -> Any:
            """Return a plain `DateTimeField` for migrations, because only reading differs."""
            name, _, args, kwargs = super().deconstruct()
            return name, "django.db.models.DateTimeField", args, kwargs

        def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
            """Select the column, or the nearest instant that can be shown in any time zone."""
            first, last = "'0001-01-03 00:00:00+00'", "'9999-12-29 00:00:00+00'"
            sql = f"CASE WHEN {sql} < {first} THEN {first} WHEN {sql} > {last} THEN {last} ELSE {sql} END"
            return sql, (*params, *params, *params)


def statement_time() -> Now:
    """Return the expression for the database's time, which is read as an aware datetime whatever `USE_TZ` says."""
    return Now(output_field=AwareField())
