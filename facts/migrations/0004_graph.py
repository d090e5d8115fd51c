"""The graph of fact vectors, the count of what is indexed, and what an erased fact leaves in other rows."""

from django.db import migrations

FORWARD = """
-- The default embedder's graph. Rows of other embedders are scanned exactly until they have their own.
CREATE INDEX fact_embedding_wordllama ON facts_factembedding
  USING hnsw ((vector::halfvec(256)) halfvec_cosine_ops)
  WHERE embedder = 'wordllama-l2-supercat-256-centred-30';

UPDATE facts_factposting p SET owner = v.owner FROM facts_version v
  WHERE v.id = p.version_id AND v.owner <> p.owner;
INSERT INTO facts_factcorpusstripe (namespace_id, owner, stripe, docs)
  SELECT namespace_id, owner, 0, count(*) FROM facts_version GROUP BY namespace_id, owner;

-- A fact that is erased counts no longer, and what it said stands no longer in other facts as what they
-- replaced (a correction may move a value to another subject).
CREATE FUNCTION loom_fact_redacted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  INSERT INTO facts_factcorpusstripe AS s (namespace_id, owner, stripe, docs)
    SELECT namespace_id, owner, 0, -count(*) FROM facts_version WHERE lineage_id = NEW.id
    GROUP BY namespace_id, owner
    ON CONFLICT (namespace_id, owner, stripe) DO UPDATE SET docs = s.docs + excluded.docs;
  UPDATE facts_version v SET replaced = NULL FROM facts_version o
    WHERE o.lineage_id = NEW.id AND v.made_from_id = o.id AND v.lineage_id <> NEW.id
    AND v.replaced IS NOT NULL;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION loom_fact_redacted() FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT, UPDATE ON facts_version TO loom_eraser;
GRANT SELECT ON facts_lineage TO loom_eraser;
GRANT SELECT, INSERT, UPDATE ON facts_factcorpusstripe TO loom_eraser;
ALTER FUNCTION loom_fact_redacted() OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_fact_redacted() TO PUBLIC;
CREATE TRIGGER fact_redacted AFTER UPDATE OF status ON facts_lineage
  FOR EACH ROW WHEN (NEW.status = 'redacted' AND OLD.status <> 'redacted')
  EXECUTE FUNCTION loom_fact_redacted();
"""
BACK = """
DROP TRIGGER fact_redacted ON facts_lineage;
DROP FUNCTION loom_fact_redacted();
DROP INDEX fact_embedding_wordllama;
"""


class Migration(migrations.Migration):
    """Search of many facts."""

    dependencies = [("facts", "0003_search_and_screening")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
