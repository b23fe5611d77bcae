"""The integration with Sentry: install the extra `sentry`, and pass a `PgQueueIntegration` to `sentry_sdk.init()`."""

from .integration import PgQueueIntegration as PgQueueIntegration
