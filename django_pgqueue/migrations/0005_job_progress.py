from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0004_job_headers"),
    ]

    operations = [
        LockTable("job"),
        migrations.AddField(
            model_name="job",
            name="progress_done",
            field=models.FloatField(null=True, verbose_name="done"),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_total",
            field=models.FloatField(null=True, verbose_name="of"),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_message",
            field=models.TextField(null=True, verbose_name="message"),
        ),
        migrations.AddField(
            model_name="job",
            name="progress_at",
            field=models.DateTimeField(null=True, verbose_name="told at"),
        ),
    ]
