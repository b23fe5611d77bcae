"""How the sentences of causes name times and limit keys. Only some readers may see keys, and each has a time zone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.display import number
from django_pgqueue.stats.sentences import utc_text
from django_pgqueue.tasks.registry import in_words


class Words(NamedTuple):
    """How to write times, and whether to name limit keys, which are made of arguments."""

    time_text: Callable[[datetime], str] = utc_text
    with_keys: bool = False

    def key_of(self, limit_keys: Sequence[str]) -> str | None:
        """Return the only one of some keys, if the reader may see it. The name of a limit is no secret."""
        key = limit_keys[0] if len(limit_keys) == 1 else None
        return key if key is not None and (self.with_keys or not has_value(key)) else None

    def keys(self, limit_keys: Sequence[str]) -> str:
        """Return these keys of one limit as a part of a sentence."""
        name = in_words(name_of(limit_keys[0]))
        if (key := self.key_of(limit_keys)) is not None:
            text = _("the limit key %(name)s") if has_value(key) else _("the limit %(name)s")
            return text % {"name": in_words(key)}
        text = ngettext("one key of the limit %(name)s", "%(keys)s keys of the limit %(name)s", len(limit_keys))
        return text % {"keys": number(len(limit_keys)), "name": name}
