-- What builds have printed, where it is handed in and not left in a file: a JSON list of lines.
CREATE TABLE build_logs (
    owner BIGINT NOT NULL REFERENCES owners (id),
    build TEXT NOT NULL,
    lines TEXT NOT NULL,
    kept_at BIGINT NOT NULL,
    PRIMARY KEY (owner, build)
);
CREATE INDEX build_logs_by_age ON build_logs (kept_at);
