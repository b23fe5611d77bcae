from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0006_schedule"),
    ]

    operations = [
        LockTable("job"),
        migrations.AddField(
            model_name="job",
            name="expires_at",
            field=models.DateTimeField(null=True, verbose_name="expires at"),
        ),
    ]
