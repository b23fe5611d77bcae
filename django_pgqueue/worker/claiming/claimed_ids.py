"""Find claimed executions whose id this process already uses for another execution.

Ids restart when the tables are emptied with RESTART IDENTITY, and go back when an older dump is restored. A process
that keeps running can then receive the id of an earlier execution that it still runs. The database distinguishes the
two executions by the time of the claim, but the threads of this process know an execution by its id alone.

Called by the fetcher after each claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.worker.completion.completer import Completer
    from django_pgqueue.worker.slots.inflight import InFlight


class ClaimedIds:
    """The check for ids in use. Only the fetcher's thread uses it."""

    def __init__(self, in_flight: InFlight, completer: Completer) -> None:
        self.in_flight = in_flight
        self.completer = completer
        self._highest = 0

    def in_use(self, claimed: Sequence[Claimed]) -> list[Claimed]:
        """Return the newly claimed jobs whose execution ids this process uses already: it cannot run them.

        While ids rise, which is almost always the case, this costs one comparison for each job. A chunk counts as its
        first job: the ids of the others are higher.
        """
        ids = [job.execution_id for job in claimed]
        if min(ids) > self._highest:
            self._highest = max(ids)
            return []
        ids_in_use = self.in_flight.known_before(float("inf")) | self.completer.ids()
        return [job for job in claimed if any(each.execution_id in ids_in_use for each in job.members)]
