-- Moments are microseconds since 1970 in UTC. Digests are 32 bytes. All whole numbers have 64 bits.

-- Ids only grow, so that they order what is newest first and a cursor never meets an id again.
CREATE TABLE functions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    runtime TEXT NOT NULL,
    settings TEXT NOT NULL,
    -- Counts every write (ETag), `generation` those that the backend must hear of.
    version BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    wanted TEXT,
    active TEXT,
    deleting BOOLEAN NOT NULL DEFAULT FALSE,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace, name)
);

CREATE TABLE revisions (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    function_id BIGINT NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    code_sha256 BYTEA NOT NULL,
    content_sha256 BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (function_id, name)
);

CREATE TABLE triggers (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    function TEXT NOT NULL,
    -- What only one type has.
    settings TEXT NOT NULL DEFAULT '{}',
    version BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace, name)
);

-- Whose record it is. Outlives the function: its history stays until retention takes it.
CREATE TABLE owners (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    function TEXT NOT NULL,
    UNIQUE (namespace, function)
);

-- One row for each attempt. JSON is text and not JSONB, which has no \u0000 and would not come back as it came.
CREATE TABLE invocations (
    row BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id UUID NOT NULL,
    owner BIGINT NOT NULL REFERENCES owners (id),
    attempt BIGINT NOT NULL,
    -- From `started`; until then guessed from the first event.
    started_at BIGINT NOT NULL,
    started BOOLEAN NOT NULL,
    revision TEXT,
    trigger TEXT,
    method TEXT,
    path TEXT,
    pod TEXT,
    request TEXT,
    -- From `finished`; all of it NULL until then.
    status TEXT,
    finished_at BIGINT,
    http_status BIGINT,
    duration_ms FLOAT8,
    queue_ms FLOAT8,
    init_ms FLOAT8,
    cpu_ms FLOAT8,
    max_rss_bytes BIGINT,
    log_bytes BIGINT,
    log_dropped_bytes BIGINT,
    result TEXT,
    error TEXT,
    UNIQUE (id, owner, attempt)
);

CREATE INDEX invocations_by_start ON invocations (owner, started_at, id);

-- The few that somebody looks for among the many.
CREATE INDEX invocations_without_success ON invocations (owner, status, started_at, id)
    WHERE status IS NULL OR status <> 'success';

CREATE TABLE log_lines (
    row BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id UUID NOT NULL,
    owner BIGINT NOT NULL REFERENCES owners (id),
    attempt BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    -- A JSON list, as it came.
    lines TEXT NOT NULL,
    UNIQUE (id, owner, attempt, seq)
);
