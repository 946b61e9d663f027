-- The invocation whose request a replay sends again.
ALTER TABLE invocations ADD COLUMN replay_of UUID;

-- What waits or runs is little, and looked for often: by those who watch, and to find what will never end.
CREATE INDEX invocations_unfinished ON invocations (owner, started_at) WHERE status IS NULL;
