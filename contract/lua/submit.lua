-- Writes a queued record once; the same idempotency key finds the first one again.
--
-- KEYS[4]  jobs of the template that wait (sorted set: id by deadline)
-- KEYS[5]  what is left of the tenant's rate (hash: tokens, at)
-- KEYS[6]  the idempotency key (string: id of the first job), or absent
-- ARGV[4]  seconds until the deadline
-- ARGV[5]  milliseconds that the record outlives its deadline
-- ARGV[6]  how many jobs of the template may wait, or '' for no limit
-- ARGV[7]  digest of the input
-- ARGV[8]  seconds until it is rung for again, should nobody have claimed it
-- ARGV[9]  the template's revision when its version was chosen, or '' when the caller named one
-- ARGV[10]  number of the version
-- ARGV[11..]  further fields of the record and their values
--
-- Returns {'created' | 'existing', id, state, queue}, {'conflict', id, state}, {'full'},
-- {'over_queued', limit}, {'over_rate', seconds until there is room} or {'moved'}: the template was
-- changed since, or the version retired.

local waiting, idempotency = KEYS[4], KEYS[6]
local now = server_time()

-- The client repeats a call whose reply it lost.
if get('state') then return {'created', job.id, get('state'), get('queue')} end

if idempotency then
  local found = first_under(idempotency, ARGV[7])
  if found then return found end
end

-- The template's keys are named here, for those who submit may only read them.
local template = beside_queued('template:' .. string.sub(waiting, #beside_queued('waiting:') + 1))
local revision = redis.call('GET', template .. ':revision') or '0'
if ARGV[9] ~= '' then
  if revision ~= ARGV[9] then return {'moved'} end
elseif redis.call('HGET', template .. ':retired', ARGV[10]) then
  return {'moved'}
end

local function full(limit) return redis.call('ZCOUNT', waiting, seconds(now), '+inf') >= limit end
if ARGV[6] ~= '' and full(tonumber(ARGV[6])) then return {'full'} end

local limits = redis.call('HMGET', beside_queued('limits'), 'rate', 'max_queued')
local rate, max_queued = tonumber(limits[1] or ''), tonumber(limits[2] or '')
if max_queued and redis.call('ZCARD', job.queued) >= max_queued then
  return {'over_queued', limits[2]}
end
local tokens
if rate then
  -- A bucket that holds one second's jobs, or one where that is less than one.
  local most, left = math.max(1, rate), redis.call('HMGET', KEYS[5], 'tokens', 'at')
  local since = now - (tonumber(left[2] or '') or now)
  tokens = math.min(most, (tonumber(left[1] or '') or most) + math.max(0, since) * rate)
  if tokens < 1 then return {'over_rate', seconds((1 - tokens) / rate)} end
end

local deadline_at = now + tonumber(ARGV[4])
local life_ms = math.ceil(tonumber(ARGV[4]) * 1000 + tonumber(ARGV[5]))
-- First of all writes: a Redis that is out of memory refuses this one, and nothing is written.
set('state', 'queued', 'input_digest', ARGV[7], 'submits', '1',
  'created_at', seconds(now), 'deadline_at', seconds(deadline_at),
  'attempt', '0', 'fence', '0', 'revision', revision, unpack(ARGV, 11))
redis.call('PEXPIRE', job.record, string.format('%d', life_ms))
tell_flow(now, 'in', '1')
redis.call('ZADD', job.queued, seconds(now + tonumber(ARGV[8])), job.id)
redis.call('ZADD', waiting, seconds(deadline_at), job.id)
redis.call('ZREMRANGEBYSCORE', waiting, '-inf', seconds(now))
if rate then
  redis.call('HSET', KEYS[5], 'tokens', seconds(tokens - 1), 'at', seconds(now))
  redis.call('PEXPIRE', KEYS[5], string.format('%d', math.ceil(2000 * math.max(1, 1 / rate))))
end
if idempotency then
  redis.call('SET', idempotency, job.id, 'PX', string.format('%d', life_ms))
  set('idempotency', string.match(idempotency, ':idem:(.*)$'))
end
return {'created', job.id, 'queued', get('queue')}
