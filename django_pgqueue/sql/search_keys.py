"""Statements that write and remove the search keys of jobs."""

from typing import Final

from .clauses import LEFT_OVER

# Add search keys of jobs.
#
# Caller: lifecycle.search_keys.add_search_keys(), in the transaction that has added the jobs
# Index:  the primary key. A row that exists is of a removed job with the same id, for example after TRUNCATE
ADD_SEARCH_KEYS: Final = """/* pgqueue:add_search_keys */
INSERT INTO pgqueue_search_key (job_id, name, value)
SELECT job_id, name, value
FROM unnest(%(job_ids)s::bigint[], %(names)s::varchar[], %(texts)s::varchar[]) AS given (job_id, name, value)
ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value
"""

# Remove all search keys of these jobs.
#
# Caller: lifecycle.search_keys.remove_search_keys(), in the transaction that has replaced the calls of the jobs
# Index:  the primary key
REMOVE_SEARCH_KEYS: Final = """/* pgqueue:remove_search_keys */
DELETE FROM pgqueue_search_key WHERE job_id = ANY (%(job_ids)s::bigint[])
"""

# Remove the search keys of jobs that no longer exist, from one page of the table. Return how many rows the page had,
# how many of them were removed, and the last job of the page. The page has all rows of its last job.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. The statements that remove jobs remove their keys too; this
#         one is for jobs that were deleted by SQL.
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys
PRUNE_SEARCH_KEYS: Final = """/* pgqueue:prune_search_keys */
WITH page AS MATERIALIZED (
    SELECT job_id, name
    FROM pgqueue_search_key
""" + LEFT_OVER + """
mine AS MATERIALIZED (
    SELECT job_id, name
    FROM pgqueue_search_key
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM left_over))
    ORDER BY job_id, name
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(job_id) FROM page
"""  # fmt: skip
