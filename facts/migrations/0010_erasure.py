"""Erasure of facts: the words go, the periods and the hashes of the values stay.

`loom_erase_facts` belongs to `loom_eraser`, whom the guards let through; it looks at locks and holds itself.
"""

from importlib import import_module

from django.db import migrations

_GUARDS: str = import_module("facts.migrations.0002_guards").FORWARD
_BEFORE = _GUARDS[
    _GUARDS.index("CREATE FUNCTION loom_guard_fact() RETURNS") : _GUARDS.index("CREATE TRIGGER fact_guard")
].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
# After the refusal of a DELETE, which stays for everybody.
_FIRST = "  IF OLD.lock_mode <> 'none' AND (OLD.lock_until"
_LET_THROUGH = "  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;\n"
_AFTER = _BEFORE.replace(_FIRST, _LET_THROUGH + _FIRST, 1)

_ERASE = """
-- Subject and attribute are found by their hashes; those of an erased fact are found by nobody, so that the
-- same words open a new one. What was believed until now is believed no longer.
CREATE FUNCTION loom_erase_facts(p_request bigint, p_lineages bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
  ended timestamptz;
BEGIN
  IF EXISTS (SELECT FROM facts_lineage l WHERE l.id = ANY(p_lineages)
             AND NOT loom_erasure_reaches(p_request, l.namespace_id)) THEN
    RAISE EXCEPTION 'erasure request % does not reach these facts', p_request USING ERRCODE = 'LM001';
  END IF;
  IF EXISTS (SELECT FROM facts_lineage l WHERE l.id = ANY(p_lineages)
             AND (l.holds > 0 OR (l.lock_mode <> 'none'
                                  AND (l.lock_until IS NULL OR l.lock_until > clock_timestamp())))) THEN
    RAISE EXCEPTION 'a fact of erasure request % is guarded', p_request USING ERRCODE = 'LM423';
  END IF;
  SELECT greatest(clock_timestamp(), max(last_known_at) + interval '1 microsecond') INTO ended
    FROM facts_lineage WHERE id = ANY(p_lineages);
  UPDATE facts_version SET value = 'null', replaced = NULL, sources = '[]', reason = '', confidence = NULL,
    known = CASE WHEN upper_inf(known) THEN tstzrange(lower(known), ended) ELSE known END
    WHERE lineage_id = ANY(p_lineages);
  UPDATE facts_retraction r SET reason = '' FROM facts_version v
    WHERE v.id = r.version_id AND v.lineage_id = ANY(p_lineages);
  DELETE FROM facts_factposting p USING facts_version v
    WHERE v.id = p.version_id AND v.namespace_id = p.namespace_id AND v.lineage_id = ANY(p_lineages);
  DELETE FROM facts_factembedding e USING facts_version v
    WHERE v.id = e.version_id AND v.lineage_id = ANY(p_lineages);
  DELETE FROM facts_factflag f USING facts_version v
    WHERE v.id = f.version_id AND v.lineage_id = ANY(p_lineages);
  UPDATE facts_lineage SET subject = '', attribute = '', status = 'redacted', version = version + 1,
    subject_sha256 = sha256(convert_to('erased ' || id, 'UTF8')),
    attribute_sha256 = sha256(convert_to('erased ' || id, 'UTF8')), last_known_at = ended,
    lock_mode = 'none', lock_reason = '', lock_until = NULL, locked_by = '', locked_at = NULL
    WHERE id = ANY(p_lineages);
END $$;
REVOKE ALL ON FUNCTION loom_erase_facts(bigint, bigint[]) FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT, UPDATE ON facts_lineage, facts_version, facts_retraction TO loom_eraser;
GRANT SELECT, DELETE ON facts_factposting, facts_factembedding, facts_factflag TO loom_eraser;
ALTER FUNCTION loom_erase_facts(bigint, bigint[]) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_facts(bigint, bigint[]) TO PUBLIC;
"""
FORWARD = _AFTER + _ERASE
BACK = _BEFORE + "DROP FUNCTION loom_erase_facts(bigint, bigint[]);"


class Migration(migrations.Migration):
    """The guard, and the function."""

    dependencies = [("facts", "0004_graph"), ("governance", "0010_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
