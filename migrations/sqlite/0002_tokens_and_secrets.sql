-- Only a hash of each token: whoever reads this file can't use it.
CREATE TABLE tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    -- SHA-256, 32 bytes.
    hash BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    -- NULL: never.
    expires_at INTEGER,
    UNIQUE (namespace, name)
);

CREATE TABLE secrets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- A JSON list, so that names can be shown without the key.
    keys TEXT NOT NULL,
    -- Encrypted; the key is not in the database.
    sealed BLOB NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (namespace, name)
);
