from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("pgqueue", "0007_job_expires_at"),
    ]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                "expires_at",
                name="pgqueue_job_expiring",
                condition=models.Q(state="ready", expires_at__isnull=False),
            ),
        ),
    ]
