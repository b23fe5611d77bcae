"""An app whose receivers, log handlers and exit functions misbehave as the environment asks: see `apps`."""
