-- Gives a dead job all its attempts again, from now on.
--
-- KEYS[4]  the tenant's dead jobs (sorted set: id by time of death)
-- ARGV[4]  seconds until the new deadline
-- ARGV[5]  milliseconds that the record outlives its deadline
--
-- Returns {'queued', queue} or {'not_dead', state} or {'not_found'}.

local now = server_time()
local state = get('state')
if not state then
  redis.call('ZREM', KEYS[4], job.id)
  return {'not_found'}
end
if get('dead') ~= '1' then return {'not_dead', state} end
redis.call('HDEL', job.record, 'dead', 'result', 'commit_s', 'finished_at', 'cancel_requested',
  'not_before', 'ended_attempt', 'tried')
set('attempt', '0', 'deadline_at', seconds(now + tonumber(ARGV[4])), 'revived', '1')
local life_ms = string.format('%d', math.ceil(tonumber(ARGV[4]) * 1000 + tonumber(ARGV[5])))
redis.call('PEXPIRE', job.record, life_ms)
-- Its idempotency key has to find it for as long. The key may have run out and be another job's by
-- now, or hold anything: pcall. It is named beside KEYS[2], as the record says only which it is.
local key = get('idempotency') or ''
if #key == 64 and not string.find(key, '[^0-9a-f]') then
  local name = beside_queued('idem:' .. key)
  local first = redis.pcall('GET', name)
  if not first or first == job.id then redis.call('SET', name, job.id, 'PX', life_ms) end
end
redis.call('ZREM', KEYS[4], job.id)
queue_up(now)
return {'queued', get('queue')}
