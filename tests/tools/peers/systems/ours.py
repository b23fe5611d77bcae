"""This project, from this checkout, with no setting changed."""

from pathlib import Path

from tests.tools.peers.brokers import asking
from tests.tools.peers.place import Peer
from tests.tools.peers.systems import django

PEER = Peer(
    name="dj-pgqueue",
    distribution="",
    packages=("cronsim==2.8", *django.PACKAGES),
    files=django.project("django_pgqueue", "django_pgqueue"),
    prepare=[django.MIGRATE],
    enqueue=django.ENQUEUE,
    worker=("-m", "django", "runworker"),
    look=asking(
        "SELECT job.state || '; executions: ' || string_agg(coalesce(execution.outcome, 'open'), ', ' ORDER BY "
        "execution.id) FROM pgqueue_job AS job JOIN pgqueue_execution AS execution ON execution.job_id = job.id "
        "GROUP BY job.state"
    ),
    succeeded="succeeded;",
    repair="nothing",
    has_child=True,
    takes_back=True,
    path=Path(__file__).resolve().parents[4],
)
