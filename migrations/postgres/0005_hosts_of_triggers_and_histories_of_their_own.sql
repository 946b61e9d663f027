-- A host leads to one function: it is taken once, whichever namespace asks first.
ALTER TABLE triggers ADD COLUMN host TEXT;
CREATE UNIQUE INDEX triggers_by_host ON triggers (host) WHERE host IS NOT NULL;

-- When the function of this name was made, if there was one of the name before: what is older is not the new one's history.
ALTER TABLE owners ADD COLUMN since BIGINT NOT NULL DEFAULT 0;
