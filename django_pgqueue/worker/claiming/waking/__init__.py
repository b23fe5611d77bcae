"""Wake the fetcher when jobs, pauses and requests arrive."""
