"""Read the forms that the buttons of the console post: texts, and the page to return to."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def text_of(request: HttpRequest, field: str) -> str:
    """Return a text of the form without NUL, which PostgreSQL cannot store."""
    return request.POST.get(field, "").replace("\0", "")


def back_of(request: HttpRequest) -> str:
    """Return the URL of the page with the form, on this site; "" if the form does not say it."""
    back = request.POST.get("back", "")
    is_here = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return back if is_here else ""
