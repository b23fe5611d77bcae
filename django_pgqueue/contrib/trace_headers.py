"""Add a trace to the headers of new jobs. Both integrations that trace use this.

It protects one rule: a trace never prevents an enqueue. Headers have a limit, so a trace without room is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_pgqueue.headers import encode_headers


def add_fitting(headers: dict[str, Any], trace: Mapping[str, str]) -> None:
    """Add the headers of a trace, most important first, as far as there is room for them."""
    fitting = dict(trace)
    while fitting:
        try:
            encode_headers(headers | fitting)
        except ValueError:
            fitting.popitem()
        except TypeError:  # in the caller's own headers: `enqueue()` reports it
            return
        else:
            headers.update(fitting)
            return
