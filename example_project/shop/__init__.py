"""A small shop: an example of mail, webhooks and a nightly report. See `README.md` in `example_project`."""
