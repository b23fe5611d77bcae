"""Tasks of a project that has forgotten to install the app.

`tests/test_mistaken_calls.py` imports them in another process.
"""

import django_pgqueue.backend
from django_pgqueue import task


def work():
    pass


own = task(name="own")(work)
framework = django_pgqueue.backend.task(work)
