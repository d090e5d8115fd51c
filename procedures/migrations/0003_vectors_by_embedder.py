"""Vectors of several embedders may stand beside each other while `reembed` runs."""

import django.db.models.deletion
import pgvector.django.halfvec
from django.db import migrations, models

FORWARD = """
ALTER TABLE procedures_situation DROP CONSTRAINT procedures_situation_pkey;
ALTER TABLE procedures_situation ADD CONSTRAINT procedures_situation_pkey
  PRIMARY KEY (procedure_id, embedder);
"""
BACK = """
DELETE FROM procedures_situation e WHERE embedder <> (
  SELECT max(o.embedder) FROM procedures_situation o WHERE o.procedure_id = e.procedure_id);
ALTER TABLE procedures_situation DROP CONSTRAINT procedures_situation_pkey;
ALTER TABLE procedures_situation ADD CONSTRAINT procedures_situation_pkey
  PRIMARY KEY (procedure_id);
"""


class Migration(migrations.Migration):
    dependencies = [("procedures", "0003_evolving"), ("governance", "0004_holds")]
    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(FORWARD, BACK)],
            state_operations=[
                migrations.DeleteModel("Situation"),
                migrations.CreateModel(
                    name="Situation",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "procedure_id", "embedder",
                                blank=True, editable=False, primary_key=True, serialize=False,
                            ),
                        ),
                        ("embedder", models.CharField(max_length=128)),
                        ("dim", models.SmallIntegerField()),
                        ("vector", pgvector.django.halfvec.HalfVectorField()),
                        ("text_sha256", models.CharField(max_length=64)),
                        (
                            "namespace",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE, to="governance.namespace"
                            ),
                        ),
                        (
                            "procedure",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="situation_vectors",
                                to="procedures.procedure",
                            ),
                        ),
                    ],
                ),
            ],
        )
    ]  # fmt: skip
