"""The notes that a person left on runs of procedures that stay."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_erase_run_notes(p_request bigint, p_runs bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM procedures_run r WHERE r.id = ANY(p_runs)
             AND NOT loom_erasure_reaches(p_request, r.namespace_id)) THEN
    RAISE EXCEPTION 'erasure request % does not reach these runs', p_request USING ERRCODE = 'LM001';
  END IF;
  UPDATE procedures_run SET note = '' WHERE id = ANY(p_runs);
END $$;
REVOKE ALL ON FUNCTION loom_erase_run_notes(bigint, bigint[]) FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
ALTER FUNCTION loom_erase_run_notes(bigint, bigint[]) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_run_notes(bigint, bigint[]) TO PUBLIC;
"""
BACK = "DROP FUNCTION loom_erase_run_notes(bigint, bigint[]);"


class Migration(migrations.Migration):
    """The function."""

    dependencies = [("procedures", "0003_vectors_by_embedder"), ("governance", "0010_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
