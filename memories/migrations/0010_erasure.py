"""What an erasure request may do to the raw archive and to words beside versions; tombstones found by age.

Redaction leaves both alone: the raw archive opens only under an erasure request that runs and asks for it.
The role gets two columns of a turn and no more.
"""

from django.db import migrations, models

FORWARD = """
-- The text of every turn of these conversations goes; who spoke when, in which order and where stays.
CREATE FUNCTION loom_erase_raw(p_request bigint, p_sessions bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM governance_erasurerequest WHERE id = p_request AND raw)
     OR EXISTS (SELECT FROM memories_rawsession s WHERE s.id = ANY(p_sessions)
                AND NOT loom_erasure_reaches(p_request, s.namespace_id)) THEN
    RAISE EXCEPTION 'erasure request % does not reach these conversations', p_request USING ERRCODE = 'LM001';
  END IF;
  UPDATE memories_rawturn SET content = '', doc_len = 0 WHERE session_id = ANY(p_sessions);
  DELETE FROM memories_rawposting p USING memories_rawturn t
    WHERE t.session_id = ANY(p_sessions) AND p.turn_id = t.id AND p.namespace_id = t.namespace_id;
  UPDATE memories_rawsession SET terms = 0 WHERE id = ANY(p_sessions);
END $$;
REVOKE ALL ON FUNCTION loom_erase_raw(bigint, bigint[]) FROM PUBLIC;

-- The reasons given for versions of redacted memories, but for that of the redaction itself.
CREATE FUNCTION loom_erase_reasons(p_request bigint, p_memories bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM memories_memory m WHERE m.id = ANY(p_memories)
             AND (m.status <> 'redacted' OR NOT loom_erasure_reaches(p_request, m.namespace_id))) THEN
    RAISE EXCEPTION 'erasure request % does not reach these memories', p_request USING ERRCODE = 'LM001';
  END IF;
  UPDATE memories_memoryversion SET reason = ''
    WHERE memory_id = ANY(p_memories) AND reason <> '' AND kind <> 'redact';
  UPDATE memories_memory SET lock_mode = 'none', lock_reason = '', lock_until = NULL, locked_by = '',
    locked_at = NULL
    WHERE id = ANY(p_memories) AND lock_mode <> 'none' AND lock_until <= clock_timestamp();
END $$;
REVOKE ALL ON FUNCTION loom_erase_reasons(bigint, bigint[]) FROM PUBLIC;

GRANT CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT ON memories_rawturn, memories_rawsession TO loom_eraser;
GRANT UPDATE (content, doc_len) ON memories_rawturn TO loom_eraser;
GRANT UPDATE (terms) ON memories_rawsession TO loom_eraser;
GRANT SELECT, DELETE ON memories_rawposting TO loom_eraser;
ALTER FUNCTION loom_erase_raw(bigint, bigint[]) OWNER TO loom_eraser;
ALTER FUNCTION loom_erase_reasons(bigint, bigint[]) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_raw(bigint, bigint[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION loom_erase_reasons(bigint, bigint[]) TO PUBLIC;
"""
BACK = """
DROP FUNCTION loom_erase_reasons(bigint, bigint[]);
DROP FUNCTION loom_erase_raw(bigint, bigint[]);
REVOKE ALL ON memories_rawturn, memories_rawsession, memories_rawposting FROM loom_eraser;
"""


class Migration(migrations.Migration):
    """The functions, and the index of tombstones."""

    dependencies = [("memories", "0007_text_config"), ("governance", "0010_erasure")]
    operations = [
        migrations.AddIndex(
            model_name="memory",
            index=models.Index(
                condition=models.Q(("status", "deleted")), fields=["updated_at"], name="memory_tombstone"
            ),
        ),
        migrations.RunSQL(FORWARD, BACK),
    ]
