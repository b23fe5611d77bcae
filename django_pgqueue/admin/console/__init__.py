"""The pages of the console that are not lists of a model: what they show comes from `stats` and `doctor`.

`PAGES` lists them in the order of the navigation. `JobAdmin` gives each its URL.
"""

from __future__ import annotations

from typing import Final

from .bulk_acts import AUDIT, BULK_ACT, act_rows, acts_on_job, stop_url
from .bulk_preview import BULK_PREVIEW, answer_list, request_url
from .doctor import DOCTOR
from .incidents import INCIDENTS
from .limits import LIMIT, LIMITS
from .overview import OVERVIEW
from .page import ConsolePage, console_urls
from .queues import QUEUE, QUEUES
from .search import SEARCH
from .tasks import TASKS

__all__ = ["PAGES", "act_rows", "acts_on_job", "answer_list", "console_urls", "request_url", "stop_url"]

PAGES: Final[tuple[ConsolePage, ...]] = (
    *(OVERVIEW, QUEUES, QUEUE, LIMITS, LIMIT, TASKS, INCIDENTS, AUDIT, DOCTOR),
    *(BULK_PREVIEW, BULK_ACT, SEARCH),
)
