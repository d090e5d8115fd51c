"""Vectors of several embedders may stand beside each other while `reembed` runs."""

import django.db.models.deletion
import pgvector.django.halfvec
from django.db import migrations, models

FORWARD = """
ALTER TABLE facts_factembedding DROP CONSTRAINT facts_factembedding_pkey;
ALTER TABLE facts_factembedding ADD CONSTRAINT facts_factembedding_pkey PRIMARY KEY (version_id, embedder);
"""
BACK = """
DELETE FROM facts_factembedding e WHERE embedder <> (
  SELECT max(o.embedder) FROM facts_factembedding o WHERE o.version_id = e.version_id);
ALTER TABLE facts_factembedding DROP CONSTRAINT facts_factembedding_pkey;
ALTER TABLE facts_factembedding ADD CONSTRAINT facts_factembedding_pkey PRIMARY KEY (version_id);
"""


class Migration(migrations.Migration):
    dependencies = [("facts", "0002_guards"), ("governance", "0004_holds")]
    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(FORWARD, BACK)],
            state_operations=[
                migrations.DeleteModel("FactEmbedding"),
                migrations.CreateModel(
                    name="FactEmbedding",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "version_id", "embedder",
                                blank=True, editable=False, primary_key=True, serialize=False,
                            ),
                        ),
                        ("embedder", models.CharField(max_length=128)),
                        ("dim", models.SmallIntegerField()),
                        ("vector", pgvector.django.halfvec.HalfVectorField()),
                        (
                            "namespace",
                            models.ForeignKey(
                                on_delete=django.db.models.deletion.CASCADE, to="governance.namespace"
                            ),
                        ),
                        (
                            "version",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="embeddings",
                                to="facts.version",
                            ),
                        ),
                    ],
                ),
            ],
        )
    ]  # fmt: skip
