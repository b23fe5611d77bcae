"""Tasks of workflows and batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from django_pgqueue import Dead, TaskContext, task
from tests.tools.faults import journal
from tests.tools.faults.app.tasks import body, effect, linger
from tests.tools.faults.app_names import FIXED

LOOK_SECONDS = 0.05


@task(takes_context=True, backoff=0.1, max_attempts=2)
def node(
    context: TaskContext,
    needed: Any = None,
    tag: str = "",
    seconds: float = 0.0,
    until: str | None = None,
    before: int = 1,
) -> int | None:
    """Return the number of the job. `needed` is such a number of another job, or a list of them."""
    given = None if needed is None else needed if isinstance(needed, list) else [needed]
    with body(context, "node", given=given):
        effect(context, "plain")
        linger(context, seconds, until)
        if context.attempt < before and not _is_mended():
            raise RuntimeError(f"attempt {context.attempt}")
    return context.job_id


def _is_mended() -> bool:
    where = journal.directory()
    return where is not None and (where / FIXED).exists()


@task(takes_context=True, backoff=0.1)
def ended(context: TaskContext, tag: str = "") -> None:
    """Run after the end of a batch."""
    with body(context, "ended"):
        effect(context, "plain")


_awaited: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[None]] = {}


@task(backoff=0)
async def held(until: str, tag: str = "", fails: bool = False) -> None:
    """End in the same moment as all other jobs that wait for this file. It writes no line: there are thousands."""
    key = asyncio.get_running_loop(), until
    if key not in _awaited:
        _awaited[key] = asyncio.create_task(_appears(Path(until)))
    await asyncio.shield(_awaited[key])
    if fails:
        raise Dead("as asked")


async def _appears(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(LOOK_SECONDS)
