"""The field of the columns whose values a codec may have encoded: the arguments and the result of `Job`.

It reaches the codecs by `operations()`, because models may not import them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_pgqueue.db.fields import PlainJSONField
from django_pgqueue.ground.envelope import is_envelope

from .operations_link import operations

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class CodecJSONField(PlainJSONField):
    """JSON that may be in an envelope of a codec. Reading decodes it."""

    def deconstruct(self) -> Any:
        """Return a `PlainJSONField` for migrations, because only reading differs."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django_pgqueue.db.fields.PlainJSONField", args, kwargs

    def from_db_value(self, value: str | None, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the decoded value, or an `EncodedValue` if this process cannot decode it.

        An exception would make all rows of a query unreadable.
        """
        read = super().from_db_value(value, expression, connection)
        return operations().readable(read) if is_envelope(read) else read
