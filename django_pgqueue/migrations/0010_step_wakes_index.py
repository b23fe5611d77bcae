"""The index of sleeps and of retried steps by their end, for metrics. An interrupted build can be repeated."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pgqueue", "0009_saga_index")]

    operations = [
        BuildIndex(
            "jobstep",
            models.Index(
                condition=models.Q(("event_name__isnull", True), ("finished_at__isnull", True)),
                fields=["wake_at"],
                name="pgqueue_step_wakes",
            ),
        ),
    ]
