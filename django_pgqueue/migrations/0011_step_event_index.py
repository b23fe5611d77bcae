"""The index of received events, for metrics. An interrupted build can be repeated."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pgqueue", "0010_step_wakes_index")]

    operations = [
        BuildIndex(
            "jobstep",
            models.Index(
                condition=models.Q(("event_id__isnull", False)), fields=["event_id"], name="pgqueue_step_event"
            ),
        ),
    ]
