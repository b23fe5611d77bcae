"""The queues that a worker serves, by `--queues` or `--queue`, and how its record in the database names them.

`runworker` makes a `ServedQueues` of its arguments. The record of a worker process has it as text, which statistics,
the admin and the commands read. `QueueSlots` and the statistics use the same rule for which queues share slots.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OTHERS: Final = "*"
"""Stands for all queues that no other `--queue` names."""
NAME_AND_NUMBER: Final = re.compile(r"([^=]+)=([0-9]{0,9})")


@dataclass(frozen=True)
class ServedQueues:
    """The queues of one worker."""

    names: tuple[str, ...] = ()
    """The queues that it serves. Empty: all queues."""
    concurrency: Mapping[str, int | None] = field(default_factory=dict)
    """The values of `--queue`: how many jobs of a queue a process runs at a time. None: as many as it has slots.

    Empty: the worker was started without `--queue`, so it claims from `names` strictly in their order.
    """

    @classmethod
    def of_queue_options(cls, concurrency: Mapping[str, int | None]) -> ServedQueues:
        """Return what these values of `--queue` mean."""
        return cls(() if OTHERS in concurrency else tuple(concurrency), concurrency)

    @classmethod
    def from_text(cls, text: str) -> ServedQueues:
        """Read the text in a worker's record. Text that no worker writes counts as names."""
        parts = [part for part in text.split(",") if part]
        pairs = [pair for part in parts if (pair := NAME_AND_NUMBER.fullmatch(part))]
        if not pairs or len(pairs) < len(parts):
            return cls(tuple(parts))
        return cls.of_queue_options({pair[1]: int(pair[2]) if pair[2] else None for pair in pairs})

    def as_text(self) -> str:
        """Return the text for a worker's record: `mail,default`, or with `--queue` `mail=2,default=`."""
        pairs = self.concurrency.items()
        return ",".join(f"{name}={number or ''}" for name, number in pairs) or ",".join(self.names)

    def texts(self) -> list[str]:
        """Return each queue as people read it, such as `mail (2)`. Empty: all queues."""
        if not self.concurrency:
            return list(self.names)
        words = {name: "all others" if name == OTHERS else name for name in self.concurrency}
        return [
            words[name] if number is None else f"{words[name]} ({number})" for name, number in self.concurrency.items()
        ]

    @property
    def is_ordered(self) -> bool:
        """Whether the worker claims from the queues strictly in the order of `names`."""
        return bool(self.names) and not self.concurrency

    @property
    def named(self) -> tuple[str, ...]:
        """The queues that the command line names."""
        return self.names or tuple(name for name in self.concurrency if name != OTHERS)

    def group_of(self, queue_name: str) -> str | None:
        """Return under which name in `concurrency` the jobs of a queue count; None: their number has no limit."""
        name = queue_name if queue_name in self.concurrency else OTHERS
        return name if self.concurrency.get(name) is not None else None
