-- The few that somebody looks for among the many.
CREATE INDEX invocations_without_success ON invocations (owner, status, started_at, id)
    WHERE status IS NULL OR status <> 'success';
