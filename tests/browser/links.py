"""A crawler that finds all pages to which the links of the console lead. It needs no browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urljoin, urlsplit

from django.test import Client
from django.urls import resolve

SHAPE_LIMIT: Final = 400


def route_of(url: str) -> str:
    """Return the pattern of the URL that a path belongs to."""
    return str(resolve(urlsplit(url).path).route)


def crawl(client: Client, start: str, shape: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Follow the links of the console. Yield one URL of each shape, and its shape, unless its shape is ""."""
    seen, waiting = {shape(start)}, [start]
    while waiting:
        url = waiting.pop(0)
        response = client.get(url, follow=False)
        if response.status_code != 200 or "html" not in response.headers["Content-Type"]:
            continue
        yield url, shape(url)
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"#]+)"', response.content.decode()):
            there = urljoin(url, link.replace("&amp;", "&"))
            found = shape(there) if there.startswith(start) else ""
            if found and found not in seen and len(seen) < SHAPE_LIMIT:
                seen.add(found)
                waiting.append(there)
