"""A read_only lock holds what a procedure is; graphs stored before are screened by the next rescan.

Runs are still recorded and folded under such a lock; flags, standing and the revision in force stay.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_guard_procedure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;
  IF (NEW.revision, NEW.prior_revision, NEW.authored, NEW.tools, NEW.quarantined, NEW.template,
      NEW.dead_ends, NEW.fail_prone, NEW.fail_prone_edges)
     IS DISTINCT FROM (OLD.revision, OLD.prior_revision, OLD.authored, OLD.tools, OLD.quarantined,
      OLD.template, OLD.dead_ends, OLD.fail_prone, OLD.fail_prone_edges)
     AND EXISTS (SELECT FROM memories_memory m WHERE m.id = OLD.memory_id AND m.lock_mode = 'read_only'
                 AND (m.lock_until IS NULL OR m.lock_until > clock_timestamp())) THEN
    RAISE EXCEPTION 'procedure % is locked (read_only): its revision, standing and flags stay.', OLD.memory_id
      USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER procedure_guard BEFORE UPDATE ON procedures_procedure
  FOR EACH ROW EXECUTE FUNCTION loom_guard_procedure();
UPDATE memories_memory m SET screened_with = 0
  FROM procedures_procedure p WHERE p.memory_id = m.id AND m.status <> 'redacted';
"""
BACK = """
DROP TRIGGER procedure_guard ON procedures_procedure;
DROP FUNCTION loom_guard_procedure();
"""


class Migration(migrations.Migration):
    """The trigger."""

    dependencies = [("procedures", "0010_erasure"), ("memories", "0010_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
