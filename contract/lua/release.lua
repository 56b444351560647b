-- Puts a running job back in the queue, as if it had not been claimed; its fence stays used.
--
-- ARGV[4]  fence of the claim
--
-- Returns 1, or 0 if the claim was lost.

if not held(ARGV[4]) then return 0 end
redis.call('HINCRBY', job.record, 'attempt', -1)
local now = server_time()
-- Its message may be gone with the worker: rung for at once.
queue_up(now)
settle(now)
return 1
