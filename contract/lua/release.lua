-- Puts a running job back in the queue, as if it had not been claimed; its fence stays used.
--
-- ARGV[4]  fence of the claim
--
-- Returns 1, or 0 if the claim was lost.

if not held(ARGV[4]) then return 0 end
redis.call('HINCRBY', job.record, 'attempt', -1)
redis.call('HDEL', job.record, 'worker', 'lease_until', 'claim_token')
set('state', 'queued')
redis.call('ZREM', job.running, job.id)
redis.call('ZADD', job.queued, get('created_at'), job.id)
redis.call('ZADD', waiting_set(), get('deadline_at'), job.id)
settle(server_time())
return 1
