"""Settings of a worker that traces jobs and its connections: an exporter writes a line for each span to a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tests import worker_settings

globals().update({name: value for name, value in vars(worker_settings).items() if name.isupper()})


class FileExporter(SpanExporter):
    """Appends the process, the start, the name and the job of each span to the file that the environment names."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["PGQUEUE_TEST_SPANS"]).open("a", encoding="utf-8") as file:
            for span in spans:
                job_id = (span.attributes or {}).get("messaging.message.id")
                file.write(f"{os.getpid()} {span.start_time} {span.name} {job_id}\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
PsycopgInstrumentor().instrument(skip_dep_check=True)
