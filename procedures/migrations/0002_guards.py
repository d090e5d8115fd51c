"""Guards: what never changes in revisions and in the ledger, and the erasure of a redacted procedure.

`loom_erase_procedure` belongs to the role `loom_eraser`, which the triggers let through (see the guards of
memories). It runs by itself once a memory row turns redacted, whoever turned it.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_guard_revision() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER revision_guard BEFORE UPDATE ON procedures_revision
  FOR EACH ROW EXECUTE FUNCTION loom_guard_revision();
CREATE TRIGGER revision_kept BEFORE DELETE ON procedures_revision
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER revision_no_truncate BEFORE TRUNCATE ON procedures_revision
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

CREATE FUNCTION loom_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  folded procedures_run;
BEGIN
  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;
  -- The one thing that happens to a run: it is folded, once.
  folded := NEW;
  folded.folded_at := OLD.folded_at;
  IF folded IS DISTINCT FROM OLD OR OLD.folded_at IS NOT NULL THEN
    RAISE EXCEPTION 'the ledger is append-only (procedure %, run %)', OLD.procedure_id, OLD.seq
      USING ERRCODE = 'LM001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER run_guard BEFORE UPDATE ON procedures_run
  FOR EACH ROW EXECUTE FUNCTION loom_guard_run();
CREATE TRIGGER run_kept BEFORE DELETE ON procedures_run
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER run_no_truncate BEFORE TRUNCATE ON procedures_run
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

-- Graphs, notes and paths go; digests, outcomes and who ran it when stay. Forks are marked.
CREATE FUNCTION loom_erase_procedure(p_memory bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM memories_memory WHERE id = p_memory AND status = 'redacted') THEN
    RAISE EXCEPTION 'memory % is not redacted', p_memory USING ERRCODE = 'LM423';
  END IF;
  UPDATE procedures_revision SET graph = '{"nodes": [], "edges": []}', counters = '{}', reason = ''
    WHERE procedure_id = p_memory;
  UPDATE procedures_run SET path = '{}', note = '', answer = NULL WHERE procedure_id = p_memory;
  UPDATE procedures_procedure SET tools = '{}', dead_ends = '{}', fail_prone = '{}', forked_from = NULL
    WHERE memory_id = p_memory;
  UPDATE procedures_procedure SET forked_from = forked_from || '{"redacted": true}'
    WHERE forked_from ->> 'memory_id' = p_memory::text;
  DELETE FROM procedures_situation WHERE procedure_id = p_memory;
END $$;
REVOKE ALL ON FUNCTION loom_erase_procedure(bigint) FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT, UPDATE ON procedures_revision, procedures_run, procedures_procedure TO loom_eraser;
GRANT SELECT, DELETE ON procedures_situation TO loom_eraser;
ALTER FUNCTION loom_erase_procedure(bigint) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_procedure(bigint) TO PUBLIC;

CREATE FUNCTION loom_redact_procedure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM loom_erase_procedure(NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER procedure_redacted AFTER UPDATE OF status ON memories_memory
  FOR EACH ROW WHEN (NEW.status = 'redacted' AND OLD.status <> 'redacted'
                     AND starts_with(NEW.memory_key, 'procedure_'))
  EXECUTE FUNCTION loom_redact_procedure();
"""
BACK = """
DROP TRIGGER procedure_redacted ON memories_memory;
DROP FUNCTION loom_redact_procedure();
DROP FUNCTION loom_erase_procedure(bigint);
DROP TRIGGER run_no_truncate ON procedures_run;
DROP TRIGGER run_kept ON procedures_run;
DROP TRIGGER run_guard ON procedures_run;
DROP FUNCTION loom_guard_run();
DROP TRIGGER revision_no_truncate ON procedures_revision;
DROP TRIGGER revision_kept ON procedures_revision;
DROP TRIGGER revision_guard ON procedures_revision;
DROP FUNCTION loom_guard_revision();
"""


class Migration(migrations.Migration):
    """Triggers of revisions and runs."""

    dependencies = [("procedures", "0001_initial"), ("memories", "0004_holds_and_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
