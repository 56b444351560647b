-- Ends an attempt that failed for a reason that may pass: the job waits for the next one, or is
-- dead if this was its last.
--
-- KEYS[4]  the tenant's dead jobs (sorted set: id by time of death)
-- ARGV[4]  fence of the claim
-- ARGV[5]  seconds until the next attempt may begin
-- ARGV[6]  how many attempts a job has
-- ARGV[7]  how long a dead job's record is kept, in milliseconds
-- ARGV[8]  the failed result, msgpack, in case it stays the last one
-- ARGV[9]  its cache state
-- ARGV[10] the number of its completion's tokens
-- ARGV[11] its error's code, or ''
--
-- Returns the state after: 'queued', 'failed', what a cancel or the deadline made of it, or nothing
-- if the claim was lost.

local now = server_time()
if held(ARGV[4]) then
  if get_number('attempt') >= tonumber(ARGV[6]) then
    set('result', ARGV[8])
    bury(KEYS[4], ARGV[7], now)
    tell_flow(now, 'out', '1', 'busy', busy_ms(now))
    tell_outcome('failed', now, ARGV[9], ARGV[10], ARGV[11])
  else
    local due = now + tonumber(ARGV[5])
    set('not_before', seconds(due), 'ended_attempt', ARGV[4])
    redis.call('HINCRBY', job.record, 'tried', 1)
    queue_up(due)
    redis.call('ZADD', beside_queued('retries'), seconds(due), job.id)
    tell_flow(now, 'busy', busy_ms(now))
    settle(now)
  end
  return get('state')
end
-- The client repeats a call whose reply it lost.
if get('ended_attempt') == ARGV[4] then return get('state') end
if get('fence') == ARGV[4] and get('result') == ARGV[8] then return get('state') end
return false
