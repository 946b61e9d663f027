-- Only a hash of each token: whoever reads this can't use it.
CREATE TABLE tokens (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    -- SHA-256, 32 bytes.
    hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    -- NULL: never.
    expires_at BIGINT,
    UNIQUE (namespace, name)
);

CREATE TABLE secrets (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- A JSON list, so that names can be shown without the key.
    keys TEXT NOT NULL,
    -- Encrypted; the key is not in the database.
    sealed BYTEA NOT NULL,
    version BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (namespace, name)
);
