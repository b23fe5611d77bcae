"""Settings of a worker that reports to Sentry: a transport writes each item of an envelope to a file as a line."""

import json
import os
from pathlib import Path

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_pgqueue.contrib.sentry import PgQueueIntegration
from tests import worker_settings

globals().update({name: value for name, value in vars(worker_settings).items() if name.isupper()})


class FileTransport(Transport):
    """Appends the payload of each item to the file that the environment names."""

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.payload.json is not None:
                with Path(os.environ["PGQUEUE_TEST_SENTRY"]).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(item.payload.json) + "\n")


sentry_sdk.init(
    dsn="http://key@127.0.0.1:9/1", transport=FileTransport, integrations=[PgQueueIntegration()], debug=False
)
