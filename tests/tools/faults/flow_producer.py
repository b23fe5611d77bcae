"""A process that enqueues one workflow, batch or job with steps, or sends an event, and writes down the ids:
`python -m tests.tools.faults.flow_producer fan_in '{"members": 5}'`.
"""

from __future__ import annotations

import json
import sys

import django

django.setup()

from django.db import transaction  # noqa: E402 -- after set-up

from django_pgqueue import Batch, send_event  # noqa: E402 -- as above
from tests.tools.faults import flows, journal  # noqa: E402 -- as above
from tests.tools.faults.producer import order  # noqa: E402 -- as above


def main(shape: str, text: str) -> int:
    """Do what a scenario has asked for."""
    options = json.loads(text)
    if shape == "event":
        send_event("go", options["key"], options["key"])
        journal.write("event-sent", key=options["key"])
        return 0
    if shape == "close":
        Batch.get(options["batch"]).close()
        return 0
    flow = flows.SHAPES[shape](**options)
    journal.write_each("enqueue-sent", [{"tag": tag, "ordered": True} for tag in flow.tags])
    with transaction.atomic():
        ids = flow.enqueue()
        for tag in flow.tags:
            order(tag)
    journal.write_each("enqueue-returned", [{"tag": tag, "answer": "committed"} for tag in flow.tags])
    journal.write("flow", jobs=ids)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
