"""The graph of a workflow on the page of its batch."""
