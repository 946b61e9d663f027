-- Calls of schedules, queues and jobs, which somebody looks for among many of HTTP.
CREATE INDEX invocations_without_http ON invocations (owner, trigger, started_at, id) WHERE trigger <> 'http';
