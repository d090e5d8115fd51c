"""The graph of fact vectors, the count of what is indexed, and the erasure of a fact.

`loom_erase_fact` belongs to the role `loom_eraser`, which the triggers let through (see the guards of
memories). It works only on a lineage whose status is 'redacted' by then, which a lock or a hold refuses.
"""

from django.db import migrations

FORWARD = """
-- The default embedder's graph. Rows of other embedders are scanned exactly until they have their own.
CREATE INDEX fact_embedding_wordllama ON facts_factembedding
  USING hnsw ((vector::halfvec(256)) halfvec_cosine_ops)
  WHERE embedder = 'wordllama-l2-supercat-256-centred-30';

UPDATE facts_factposting p SET owner = v.owner FROM facts_version v
  WHERE v.id = p.version_id AND v.owner <> p.owner;
INSERT INTO facts_factcorpusstripe (namespace_id, owner, stripe, docs, terms)
  SELECT namespace_id, owner, 0, count(*), sum(doc_len) FROM (
    SELECT DISTINCT namespace_id, owner, version_id, doc_len FROM facts_factposting) d
  GROUP BY namespace_id, owner;

CREATE OR REPLACE FUNCTION loom_guard_fact() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  held text := 'none';
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'facts_lineage is append-only: DELETE is refused' USING ERRCODE = 'LM001';
  END IF;
  IF current_user = 'loom_eraser' THEN RETURN NEW; END IF;
  IF OLD.lock_mode <> 'none' AND (OLD.lock_until IS NULL OR OLD.lock_until > clock_timestamp()) THEN
    held := OLD.lock_mode;
  END IF;
  -- Sharing moves a private fact to everybody, never back and never to another user.
  IF (NEW.id, NEW.namespace_id, NEW.subject, NEW.attribute, NEW.subject_sha256, NEW.attribute_sha256,
      NEW.cardinality, NEW.created_at)
     IS DISTINCT FROM (OLD.id, OLD.namespace_id, OLD.subject, OLD.attribute, OLD.subject_sha256,
      OLD.attribute_sha256, OLD.cardinality, OLD.created_at)
     OR (NEW.owner <> OLD.owner AND NEW.owner <> '-')
     OR NEW.last_known_at < OLD.last_known_at OR NEW.version < OLD.version THEN
    RAISE EXCEPTION 'the identity of fact % never changes, and its clock never goes back', OLD.id
      USING ERRCODE = 'LM001';
  END IF;
  IF current_setting('loom.loosen', true) IS DISTINCT FROM OLD.id::text THEN
    IF NEW.holds < OLD.holds THEN
      RAISE EXCEPTION 'fact % is under % holds, which only an admin releases.', OLD.id, OLD.holds
        USING ERRCODE = 'LM423';
    END IF;
    IF held <> 'none' AND (loom_lock_rank(NEW.lock_mode) < loom_lock_rank(held)
        OR (NEW.lock_until IS NOT NULL AND (OLD.lock_until IS NULL OR NEW.lock_until < OLD.lock_until))) THEN
      RAISE EXCEPTION 'fact % is locked (%): %. Its lock only an admin loosens.',
        OLD.id, held, OLD.lock_reason USING ERRCODE = 'LM423';
    END IF;
  END IF;
  IF NEW.status IS DISTINCT FROM OLD.status AND (held <> 'none' OR OLD.holds > 0) THEN
    RAISE EXCEPTION 'fact % is locked (%, % holds): %. The write would change its existence.',
      OLD.id, held, OLD.holds, OLD.lock_reason USING ERRCODE = 'LM423';
  END IF;
  IF held = 'read_only' AND (NEW.owner, NEW.version) IS DISTINCT FROM (OLD.owner, OLD.version) THEN
    RAISE EXCEPTION 'fact % is locked (%): %. The write would change its value.',
      OLD.id, held, OLD.lock_reason USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;

-- Take the words of a fact out of every version, every index and what other facts say that they replaced;
-- when, by whom and the hashes of the values stay. Its name goes too, so that the same subject and attribute
-- may be remembered anew.
CREATE FUNCTION loom_erase_fact(p_lineage bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM facts_lineage WHERE id = p_lineage AND status = 'redacted'
                 AND holds = 0 AND (lock_mode = 'none' OR lock_until <= clock_timestamp())) THEN
    RAISE EXCEPTION 'fact % is not redacted, or is guarded', p_lineage USING ERRCODE = 'LM423';
  END IF;
  INSERT INTO facts_factcorpusstripe AS s (namespace_id, owner, stripe, docs, terms)
    SELECT namespace_id, owner, 0, -count(*), -sum(doc_len) FROM (
      SELECT DISTINCT p.namespace_id, p.owner, p.version_id, p.doc_len FROM facts_factposting p
      JOIN facts_version v ON v.id = p.version_id WHERE v.lineage_id = p_lineage) d
    GROUP BY namespace_id, owner
    ON CONFLICT (namespace_id, owner, stripe)
      DO UPDATE SET docs = s.docs + excluded.docs, terms = s.terms + excluded.terms;
  DELETE FROM facts_factposting WHERE version_id IN
    (SELECT id FROM facts_version WHERE lineage_id = p_lineage);
  DELETE FROM facts_factembedding WHERE version_id IN
    (SELECT id FROM facts_version WHERE lineage_id = p_lineage);
  DELETE FROM facts_factflag WHERE version_id IN
    (SELECT id FROM facts_version WHERE lineage_id = p_lineage);
  UPDATE facts_retraction SET reason = '' WHERE version_id IN
    (SELECT id FROM facts_version WHERE lineage_id = p_lineage);
  UPDATE facts_version SET replaced = replaced || '{"value": null, "reason": ""}'
    WHERE replaced IS NOT NULL AND made_from_id IN
      (SELECT id FROM facts_version WHERE lineage_id = p_lineage);
  UPDATE facts_version SET value = 'null', sources = '[]', reason = '',
    replaced = replaced || '{"value": null, "reason": ""}' WHERE lineage_id = p_lineage;
  UPDATE facts_lineage SET subject = '', attribute = '', lock_reason = '', lock_mode = 'none',
    subject_sha256 = sha256(convert_to('erased ' || id, 'UTF8')),
    attribute_sha256 = sha256(convert_to('erased ' || id, 'UTF8')) WHERE id = p_lineage;
END $$;
REVOKE ALL ON FUNCTION loom_erase_fact(bigint) FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT, UPDATE ON facts_lineage, facts_version, facts_retraction TO loom_eraser;
GRANT SELECT, DELETE ON facts_factposting, facts_factembedding, facts_factflag TO loom_eraser;
GRANT SELECT, INSERT, UPDATE ON facts_factcorpusstripe TO loom_eraser;
ALTER FUNCTION loom_erase_fact(bigint) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_fact(bigint) TO PUBLIC;
"""
BACK = """
DROP FUNCTION loom_erase_fact(bigint);
DROP INDEX fact_embedding_wordllama;
"""


class Migration(migrations.Migration):
    """Search of many facts, and their erasure."""

    dependencies = [("facts", "0003_search_and_screening")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
