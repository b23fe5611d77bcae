"""Run jobs in slots: threads, one event loop, and isolated processes."""
