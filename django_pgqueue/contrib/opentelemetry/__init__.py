"""The integration with OpenTelemetry: install the extra `opentelemetry`, and list a middleware in the settings."""

from .middleware import OneTraceMiddleware as OneTraceMiddleware
from .middleware import OpenTelemetryMiddleware as OpenTelemetryMiddleware
