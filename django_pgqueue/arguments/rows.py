"""The converter of Django models: it stores the primary key, and the worker loads the row at the start of the attempt.

Rows are loaded like the target of a foreign key: with the model's `_base_manager`, which hides no rows. All rows of one
model are loaded by one query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeGuard

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models, router

from django_pgqueue.exceptions import InvalidTask

from .converter import NUMBER, STRING, Converter, Mismatch, Rows
from .scalars import TEXTS


class RowMissing(Exception):
    """A row that an argument names does not exist any more.

    Attributes:
        model: The model of the row.
    """

    def __init__(self, model: type[models.Model]) -> None:
        super().__init__(f"the row of {model._meta.label} that the job's arguments name no longer exists")
        self.model = model

    def as_does_not_exist(self) -> ObjectDoesNotExist:
        """Return the model's own exception for a missing row."""
        missing: type[ObjectDoesNotExist] = self.model.DoesNotExist  # type: ignore[attr-defined]  # every model has it
        return missing(str(self))


class Keys:
    """Leaves primary keys as they are."""

    def row(self, model: type[models.Model], key: Any) -> Any:
        """Return the primary key."""
        return key


KEYS: Final = Keys()
KEY_TYPES: Final = (str, int, *TEXTS)
"""Types that a primary key can have."""


class LoadedRows:
    """The rows that the arguments of one job name."""

    def __init__(self, alias: str, references: Iterable[tuple[type[models.Model], Any]]) -> None:
        keys: defaultdict[type[models.Model], set[Any]] = defaultdict(set)
        for model, key in references:
            keys[model].add(key)
        self._rows = {model: _load(model, alias, of_model) for model, of_model in keys.items()}

    def row(self, model: type[models.Model], key: Any) -> Any:
        """Return the row with this primary key. Raise `RowMissing` if the row does not exist."""
        try:
            return self._rows[model][key]
        except KeyError:
            raise RowMissing(model) from None


def _load(model: type[models.Model], alias: str, keys: set[Any]) -> dict[Any, models.Model]:
    rows = model._base_manager.using(database_of(model, alias))
    return {row.pk: row for row in rows.filter(pk__in=keys)}


def database_of(model: type[models.Model], alias: str) -> str:
    """Return the alias that the routers choose for writes of a model. Without a choice, return `alias`.

    A replica can lag behind the job, so the alias for reads is not used.
    """
    for each in router.routers:
        choose = getattr(each, "db_for_write", None)
        if choose is not None and (chosen := choose(model)):
            return str(chosen)
    return alias


class RowConverter(Converter):
    """A model: takes a saved instance or a primary key, and stores the primary key."""

    kinds = STRING | NUMBER
    """The type of the primary key may not be known yet, and is one of these."""

    def __init__(self, model: type[models.Model]) -> None:
        if model._meta.abstract:
            raise InvalidTask(f"{model.__name__} is an abstract model, which has no rows")
        if len(getattr(model._meta, "pk_fields", ())) > 1:
            raise InvalidTask(f"{model._meta.label} has a composite primary key: pass the values of the key")
        self.model = model
        self.expected = f"{model.__name__} or its primary key"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, self._concrete if isinstance(value, models.Model) else KEY_TYPES)

    def encode(self, value: Any) -> Any:
        if isinstance(value, models.Model):
            self.check(value)
            value = self._key_of(value)
        return _in_json(self._key(value, Mismatch(f"must be {self.expected}, not {type(value).__name__}")))

    def decode(self, stored: Any, rows: Rows) -> Any:
        return rows.row(self.model, self._key(stored, self.unreadable()))

    def references(self, stored: Any) -> Iterator[tuple[Any, Any]]:
        with suppress(Mismatch):  # decode() raises it
            yield self.model, self._key(stored, self.unreadable())

    @property
    def _concrete(self) -> type[models.Model]:
        """The model that has the table: proxies of it have the same rows."""
        return self.model._meta.concrete_model or self.model

    def _key_of(self, instance: models.Model) -> Any:
        key = getattr(instance, self._concrete._meta.pk.attname)
        if key is None or instance._state.adding:
            raise Mismatch(f"is a {type(instance).__name__} that is not saved: save it first", ValueError)
        return key

    def _key(self, value: Any, error: Mismatch) -> Any:
        """Return a primary key as the type of its field. Raise `error` if it is not one."""
        if isinstance(value, bool) or not isinstance(value, KEY_TYPES):
            raise error
        field = self._concrete._meta.pk
        while isinstance(field, models.ForeignKey):  # of a model that inherits from another one
            field = field.target_field
        try:
            key = field.to_python(value)
        except (ValidationError, TypeError, ValueError):
            raise error from None
        if isinstance(key, int) and not isinstance(value, str) and key != value:  # a Decimal was rounded
            raise error
        return key


def _in_json(key: Any) -> Any:
    """Return a primary key in plain JSON types."""
    for python_type, text in TEXTS.items():
        if isinstance(key, python_type) and text.accepts(key):
            return text.encode(key)
    return key


def is_model(annotation: Any) -> TypeGuard[type[models.Model]]:
    """Return whether an annotation is a Django model."""
    return isinstance(annotation, type) and issubclass(annotation, models.Model)
