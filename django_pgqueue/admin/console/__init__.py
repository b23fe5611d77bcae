"""The pages of the console that are not lists of a model: what they show comes from `stats` and `doctor`.

`PAGES` lists them in the order of the navigation. `JobAdmin` gives each its URL.
"""

from __future__ import annotations

from typing import Final

from .doctor import DOCTOR
from .incidents import INCIDENTS
from .overview import OVERVIEW
from .page import ConsolePage, console_urls
from .queues import QUEUE, QUEUES
from .tasks import TASKS

__all__ = ["PAGES", "console_urls"]

PAGES: Final[tuple[ConsolePage, ...]] = (OVERVIEW, QUEUES, QUEUE, TASKS, INCIDENTS, DOCTOR)
