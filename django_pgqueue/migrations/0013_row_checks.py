from datetime import UTC, datetime

from django.db import migrations, models
from django.db.models import Q

from django_pgqueue.row_checks import AddRowChecks

FIRST, LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


def check(name: str, condition: Q) -> models.CheckConstraint:
    return models.CheckConstraint(name=name, condition=condition)


def instants(*names: str) -> Q:
    return Q(*(part for name in names for part in ((f"{name}__gte", FIRST), (f"{name}__lt", LAST))))


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("pgqueue", "0012_schedule_options"),
    ]

    operations = [
        AddRowChecks(
            {
                "job": [
                    check(
                        "pgqueue_job_state",
                        Q(state__in=["ready", "running", "succeeded", "dead", "cancelled", "waiting"]),
                    ),
                    check("pgqueue_job_counters", Q(attempt__gte=0, crashes__gte=0, max_attempts__gte=1)),
                    check("pgqueue_job_unique_ready_only", Q(unique_ready_only=True)),
                    check(
                        "pgqueue_job_instants", instants("enqueued_at", "finished_at", "unknown_since", "expires_at")
                    ),
                ],
                "execution": [
                    check(
                        "pgqueue_execution_outcome",
                        Q(outcome__in=["succeeded", "failed", "crashed", "cancelled", "released", "snoozed"]),
                    ),
                    check(
                        "pgqueue_execution_instants",
                        instants("claimed_at", "started_at", "finished_at", "lease_expires_at"),
                    ),
                ],
                "schedule": [check("pgqueue_schedule_instants", instants("next_run_at", "last_run_at", "vouched_at"))],
                "pause": [check("pgqueue_pause_instants", instants("paused_at", "paused_until"))],
            }
        ),
    ]
