from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0008_job_expiring"),
    ]

    operations = [
        LockTable("job"),
        migrations.AddField(
            model_name="job",
            name="unique_key",
            field=models.CharField(max_length=200, null=True, verbose_name="unique key"),
        ),
        migrations.AddField(
            model_name="job",
            name="unique_ready_only",
            field=models.BooleanField(null=True),
        ),
    ]
