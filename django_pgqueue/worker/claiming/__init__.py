"""Claim due jobs for the slots of a worker process, and watch the leases of claimed jobs."""
