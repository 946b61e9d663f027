-- Moments are microseconds since 1970 in UTC. Digests are 32 bytes, invocation ids 16.

-- AUTOINCREMENT: ids only grow, so that they order what is newest first and a cursor never meets an id again.
CREATE TABLE functions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    runtime TEXT NOT NULL,
    settings TEXT NOT NULL,
    -- Counts every write (ETag), `generation` those that the backend must hear of.
    version INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    wanted TEXT,
    active TEXT,
    deleting INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (namespace, name)
);

CREATE TABLE revisions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    function_id INTEGER NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    code_sha256 BLOB NOT NULL,
    content_sha256 BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (function_id, name)
);

CREATE TABLE triggers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    function TEXT NOT NULL,
    -- What only one type has.
    settings TEXT NOT NULL DEFAULT '{}',
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (namespace, name)
);

-- Whose record it is. Outlives the function: its history stays until retention takes it.
CREATE TABLE owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    function TEXT NOT NULL,
    UNIQUE (namespace, function)
);

-- One row for each attempt. With a rowid: rows of a kilobyte would make the b-tree of a table without one three times as large.
CREATE TABLE invocations (
    row INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    owner INTEGER NOT NULL REFERENCES owners (id),
    attempt INTEGER NOT NULL,
    -- From `started`; until then guessed from the first event.
    started_at INTEGER NOT NULL,
    started INTEGER NOT NULL,
    revision TEXT,
    trigger TEXT,
    method TEXT,
    path TEXT,
    pod TEXT,
    request TEXT,
    -- From `finished`; all of it NULL until then.
    status TEXT,
    finished_at INTEGER,
    http_status INTEGER,
    duration_ms REAL,
    queue_ms REAL,
    init_ms REAL,
    cpu_ms REAL,
    max_rss_bytes INTEGER,
    log_bytes INTEGER,
    log_dropped_bytes INTEGER,
    result TEXT,
    error TEXT,
    UNIQUE (id, owner, attempt)
);

CREATE INDEX invocations_by_start ON invocations (owner, started_at, id);

CREATE TABLE log_lines (
    row INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    owner INTEGER NOT NULL REFERENCES owners (id),
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    -- A JSON list, as it came.
    lines TEXT NOT NULL,
    UNIQUE (id, owner, attempt, seq)
);

CREATE TRIGGER log_lines_go_with_their_record AFTER DELETE ON invocations BEGIN
    DELETE FROM log_lines WHERE id = OLD.id AND owner = OLD.owner AND attempt = OLD.attempt;
END;
