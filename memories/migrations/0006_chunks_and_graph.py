"""Vectors by chunk and embedder, and a graph that writes do not wait for."""

import django.db.models.deletion
import django.db.models.functions.datetime
import pgvector.django.halfvec
from django.db import migrations, models

# The rows stay: each is chunk 0 of its text, as a text that was not cut. The graph begins empty and is filled
# by the worker, namespace by namespace, where one is large enough to need it.
FORWARD = """
ALTER TABLE memories_embedding
  ADD COLUMN chunk smallint NOT NULL DEFAULT 0,
  ADD COLUMN starts_at integer NOT NULL DEFAULT 0,
  ADD COLUMN ends_at integer NOT NULL DEFAULT 0,
  ADD COLUMN in_graph boolean NOT NULL DEFAULT false;
DROP INDEX embedding_wordllama;
ALTER TABLE memories_embedding DROP CONSTRAINT memories_embedding_pkey;
ALTER TABLE memories_embedding ADD CONSTRAINT memories_embedding_pkey
  PRIMARY KEY (memory_id, embedder, chunk);
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT indexname FROM pg_indexes WHERE tablename = 'memories_embedding'
    AND schemaname = current_schema() AND indexdef LIKE '%(namespace_id)' LOOP
    EXECUTE format('DROP INDEX %I', name);
  END LOOP;
END $$;
CREATE INDEX embedding_of_namespace ON memories_embedding (namespace_id, in_graph, embedder);
CREATE INDEX embedding_wordllama ON memories_embedding
  USING hnsw ((vector::halfvec(256)) halfvec_cosine_ops)
  WHERE in_graph AND embedder = 'wordllama-l2-supercat-256-centred-30';
"""
BACK = """
DROP INDEX embedding_wordllama;
DROP INDEX embedding_of_namespace;
DELETE FROM memories_embedding e WHERE chunk > 0
  OR embedder <> (SELECT max(o.embedder) FROM memories_embedding o WHERE o.memory_id = e.memory_id);
ALTER TABLE memories_embedding DROP CONSTRAINT memories_embedding_pkey;
ALTER TABLE memories_embedding ADD CONSTRAINT memories_embedding_pkey PRIMARY KEY (memory_id);
ALTER TABLE memories_embedding DROP COLUMN chunk, DROP COLUMN starts_at, DROP COLUMN ends_at,
  DROP COLUMN in_graph;
CREATE INDEX memories_embedding_namespace ON memories_embedding (namespace_id);
CREATE INDEX embedding_wordllama ON memories_embedding
  USING hnsw ((vector::halfvec(256)) halfvec_cosine_ops)
  WHERE embedder = 'wordllama-l2-supercat-256-centred-30';
"""


class Migration(migrations.Migration):
    dependencies = [("memories", "0005_forks"), ("governance", "0004_holds")]
    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(FORWARD, BACK)],
            state_operations=[
                migrations.DeleteModel("Embedding"),
                migrations.CreateModel(
                    name="Embedding",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "memory_id", "embedder", "chunk",
                                blank=True, editable=False, primary_key=True, serialize=False,
                            ),
                        ),
                        ("embedder", models.CharField(max_length=128)),
                        ("chunk", models.SmallIntegerField(db_default=0, default=0)),
                        ("starts_at", models.IntegerField(db_default=0, default=0)),
                        ("ends_at", models.IntegerField(db_default=0, default=0)),
                        ("dim", models.SmallIntegerField()),
                        ("vector", pgvector.django.halfvec.HalfVectorField()),
                        ("content_sha256", models.CharField(max_length=64)),
                        ("in_graph", models.BooleanField(db_default=False, default=False)),
                        (
                            "memory",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="embeddings",
                                to="memories.memory",
                            ),
                        ),
                        (
                            "namespace",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                to="governance.namespace",
                            ),
                        ),
                    ],
                    options={
                        "indexes": [
                            models.Index(
                                fields=["namespace", "in_graph", "embedder"], name="embedding_of_namespace"
                            )
                        ],
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="Reembedding",
            fields=[
                ("embedder", models.CharField(max_length=128, primary_key=True, serialize=False)),
                (
                    "finished_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
        ),
    ]  # fmt: skip
