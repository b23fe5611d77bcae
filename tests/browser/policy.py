"""Middleware that sends a strict Content-Security-Policy. Django has one of its own only from version 6.0 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse

POLICY: Final = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


class ContentSecurityPolicy:
    """Forbids everything that a page does not load from its own server, and inline styles and scripts."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Add the header to the response."""
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response
