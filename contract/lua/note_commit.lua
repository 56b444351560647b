-- After a commit: adds how long it took, which is known only now, and names the tenant's next job
-- if that was refused because too many ran.
--
-- KEYS[4]  the tenant's jobs that wait for one of its others to end (sorted set)
-- ARGV[4]  fence of the claim
-- ARGV[5]  seconds
--
-- Returns {id, queue} of the job to ring for, or nothing. Its record is not in KEYS: its name
-- differs from KEYS[1] in the last 32 characters only.

if get('fence') == ARGV[4] and get('result') then set('commit_s', ARGV[5]) end
for _ = 1, 16 do
  local held = redis.call('ZPOPMIN', KEYS[4])[1]
  if not held then return false end
  local record = string.sub(job.record, 1, -33) .. string.sub(held, -32)
  -- Others were cancelled, ran out of time or were taken meanwhile.
  if redis.call('HGET', record, 'state') == 'queued' then
    return {held, redis.call('HGET', record, 'queue')}
  end
end
return false
