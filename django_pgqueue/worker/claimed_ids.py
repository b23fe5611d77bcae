"""Find claimed executions whose id this process already uses for another execution.

Ids restart when the tables are emptied with RESTART IDENTITY, and go back when an older dump is restored. A process
that lives on can then receive an id under which it still runs an earlier job. The database distinguishes the two by the
time of the claim. The threads of this process know executions by id alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

    from .completer import Completer
    from .hand import Hand


class ClaimedIds:
    """Used by the fetcher's thread alone."""

    def __init__(self, hand: Hand, completer: Completer) -> None:
        self.hand = hand
        self.completer = completer
        self._highest = 0

    def in_use(self, claimed: Sequence[Claimed]) -> list[Claimed]:
        """Return those of newly claimed jobs whose execution ids name other executions here: they cannot be held.

        While ids rise, which is as good as always, this costs one comparison for each job.
        """
        ids = [job.execution_id for job in claimed]
        if min(ids) > self._highest:
            self._highest = max(ids)
            return []
        held = self.hand.known_before(float("inf")) | self.completer.ids()
        return [job for job in claimed if job.execution_id in held]
