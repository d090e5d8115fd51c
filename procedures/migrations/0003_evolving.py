"""What evolve keeps: evidence and settings of a procedure, and how a revision was judged.

Against whom a revision is judged, and what it brings back, never changes; an erasure takes away what repeats
ids of the graph.
"""

from django.db import migrations, models

FORWARD = """
CREATE OR REPLACE FUNCTION loom_guard_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;
  IF (NEW.id, NEW.procedure_id, NEW.namespace_id, NEW.number, NEW.graph, NEW.digest, NEW.proposed_by,
      NEW.reason, NEW.opened_after, NEW.opened_at, NEW.prior, NEW.restores)
     IS DISTINCT FROM (OLD.id, OLD.procedure_id, OLD.namespace_id, OLD.number, OLD.graph, OLD.digest,
      OLD.proposed_by, OLD.reason, OLD.opened_after, OLD.opened_at, OLD.prior, OLD.restores) THEN
    RAISE EXCEPTION 'the graph of a revision never changes (procedure %, revision %)',
      OLD.procedure_id, OLD.number USING ERRCODE = 'LM001';
  END IF;
  IF OLD.verdict IS NOT NULL AND NEW.verdict IS DISTINCT FROM OLD.verdict THEN
    RAISE EXCEPTION 'a verdict never changes (procedure %, revision %)', OLD.procedure_id, OLD.number
      USING ERRCODE = 'LM001';
  END IF;
  RETURN NEW;
END $$;

-- A second function: the first one's owner would have to be the migrating role to replace it.
CREATE FUNCTION loom_erase_evidence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  UPDATE procedures_procedure SET fail_prone_edges = '[]', evolve_settings = NULL WHERE memory_id = NEW.id;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION loom_erase_evidence() FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
ALTER FUNCTION loom_erase_evidence() OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
CREATE TRIGGER procedure_redacted_evidence AFTER UPDATE OF status ON memories_memory
  FOR EACH ROW WHEN (NEW.status = 'redacted' AND OLD.status <> 'redacted'
                     AND starts_with(NEW.memory_key, 'procedure_'))
  EXECUTE FUNCTION loom_erase_evidence();
"""
BACK = """
DROP TRIGGER procedure_redacted_evidence ON memories_memory;
DROP FUNCTION loom_erase_evidence();
CREATE OR REPLACE FUNCTION loom_guard_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;
  IF (NEW.id, NEW.procedure_id, NEW.namespace_id, NEW.number, NEW.graph, NEW.digest, NEW.proposed_by,
      NEW.reason, NEW.opened_after, NEW.opened_at)
     IS DISTINCT FROM (OLD.id, OLD.procedure_id, OLD.namespace_id, OLD.number, OLD.graph, OLD.digest,
      OLD.proposed_by, OLD.reason, OLD.opened_after, OLD.opened_at) THEN
    RAISE EXCEPTION 'the graph of a revision never changes (procedure %, revision %)',
      OLD.procedure_id, OLD.number USING ERRCODE = 'LM001';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    """Columns, the wider guard, the erasure of transitions."""

    dependencies = [
        ("memories", "0005_forks"),
        ("procedures", "0002_guards"),
    ]

    operations = [
        migrations.AddField(
            model_name="procedure",
            name="evidence",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name="procedure",
            name="evolve_job",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="procedure",
            name="evolve_settings",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="procedure",
            name="fail_prone_edges",
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.AddField(
            model_name="procedure",
            name="prior_revision",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="revision",
            name="baseline",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="revision",
            name="prior",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="revision",
            name="restores",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="revision",
            name="verdict",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name="procedure",
            index=models.Index(
                condition=models.Q(("runs_folded__lt", models.F("runs_total"))),
                fields=["last_run_at"],
                name="procedure_unfolded",
            ),
        ),
        migrations.RemoveIndex(model_name="run", name="run_unfolded"),
        migrations.RunSQL(
            "ALTER TABLE procedures_run SET (fillfactor = 50)",
            "ALTER TABLE procedures_run RESET (fillfactor)",
        ),
        migrations.RunSQL(FORWARD, BACK),
    ]
