"""PgQueuer, by its README: `pgq install`, a factory with an entrypoint, `pgq run`."""

from tests.tools.peers.brokers import asking
from tests.tools.peers.place import Peer

WORK = """
import asyncio
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver

import job


@asynccontextmanager  # which the README leaves out, and `pgq run` asks for
async def main():
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect()))

    @queue.entrypoint("hold")
    async def hold(_):
        for _ in job.turns():
            await asyncio.sleep(0.1)

    yield queue
"""
CLI = ("-m", "pgqueuer")

PEER = Peer(
    name="pgqueuer",
    distribution="pgqueuer",
    packages=("pgqueuer[asyncpg]==1.6.0", "typer==0.24.1"),  # with typer 0.29.2 `pgq run` ends with an AttributeError
    files={"work.py": WORK},
    prepare=[(*CLI, "install")],
    enqueue=(*CLI, "queue", "hold", "nothing"),
    worker=(*CLI, "run", "work:main"),
    look=asking(
        "SELECT coalesce((SELECT 'row: ' || status FROM pgqueuer), 'row deleted') || '; log: ' || "
        "coalesce((SELECT string_agg(status::text, ', ' ORDER BY id) FROM pgqueuer_log), 'empty')"
    ),
    succeeded="successful",
    repair="nothing",
    takes_back=True,
)
