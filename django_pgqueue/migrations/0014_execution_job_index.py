"""An index on (job_id, id) of executions takes the place of the one on job_id.

The admin and waiting callers look for the latest attempt of a job. With 10,000 attempts of each of 100 jobs that took
570 ms, and takes 1.6 ms with the new index. Both steps work beside the workers, and can be run again.
"""

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex, DropColumnIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("pgqueue", "0013_row_checks"),
    ]

    operations = [
        BuildIndex(
            model_name="execution",
            index=models.Index("job", "id", name="pgqueue_execution_job"),
        ),
        DropColumnIndex(
            model_name="execution",
            name="job",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="executions",
                to="pgqueue.job",
                verbose_name="job",
            ),
        ),
    ]
