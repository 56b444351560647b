-- Finds the job first submitted under an idempotency key, as another submit under it would.
--
-- KEYS[4]  the idempotency key (string: id of the first job)
-- ARGV[4]  digest of the input
--
-- Returns {'existing', id, state, queue}, {'conflict', id, state} or {'none'}.

return first_under(KEYS[4], ARGV[4]) or {'none'}
