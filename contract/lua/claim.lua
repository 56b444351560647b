-- Gives a free job to a worker for one lease.
--
-- KEYS[4]  the tenant's dead jobs (sorted set: id by time of death)
-- KEYS[5]  its jobs that wait for one of its others to end (sorted set: id by time of submit)
-- ARGV[4]  worker id
-- ARGV[5]  length of the lease in seconds
-- ARGV[6]  a token that differs from call to call
-- ARGV[7]  how many attempts a job has
-- ARGV[8]  how long a dead job's record is kept, in milliseconds
-- ARGV[9]  after how many attempts whose workers died it is given to one that runs it alone
-- ARGV[10] '1' for such a worker
-- ARGV[11] how many bytes ARGV[12] has, at most
-- ARGV[12..]  names of fields that the worker reads, `input` first; the others are short
--
-- Returns {'claimed', seconds since submit, values of the fields}
-- or {'cancelled' | 'expired' | 'ended' | 'leased' | 'delayed' | 'limited' | 'dead' | 'suspect' |
-- 'damaged', state} or {'not_found'}.

local now = server_time()
local state, free = settle(now)

-- Producers can write their records by hand, and a worker must not be filled by one.
local function too_large()
  for i = 12, #ARGV do
    local most = i == 12 and tonumber(ARGV[11]) or 256
    if redis.call('HSTRLEN', job.record, ARGV[i]) > most then return true end
  end
end

local function claimed()
  local values = redis.call('HMGET', job.record, unpack(ARGV, 12))
  return {'claimed', seconds(now - get_number('created_at')), values}
end

if not state then return {'not_found'} end
if free then
  if too_large() then
    finish('failed', now)
    return {'damaged', 'failed'}
  end
  if (get_number('not_before') or 0) > now then return {'delayed', state} end
  if get_number('attempt') >= tonumber(ARGV[7]) then
    -- Each attempt began and none came to an end: it may be what ends its workers.
    bury(KEYS[4], ARGV[8], now)
    tell_outcome('failed', now, '', '0', 'attempts_exhausted')
    return {'dead', 'failed'}
  end
  -- Those attempts are left that neither ended, if only for a while, nor were given back.
  local crashes = get_number('attempt') - (get_number('tried') or 0)
  if crashes >= tonumber(ARGV[9]) and ARGV[10] ~= '1' then return {'suspect', state} end
  local max_running = tonumber(redis.call('HGET', beside_queued('limits'), 'max_running') or '')
  if max_running then
    local others = redis.call('ZCARD', job.running)
    -- One whose worker died is among the running still.
    if redis.call('ZSCORE', job.running, job.id) then others = others - 1 end
    if others >= max_running then
      redis.call('ZADD', KEYS[5], get('created_at'), job.id)
      return {'limited', state}
    end
    redis.call('ZREM', KEYS[5], job.id)
  end
  local lease_until = seconds(now + tonumber(ARGV[5]))
  redis.call('HINCRBY', job.record, 'attempt', 1)
  -- No fence is given twice, also when Redis has lost the claim that had the last one, in a failover
  -- or with the last second of its file: whoever made that claim may still work.
  local micros = math.floor(now * 1000000)
  if redis.call('HINCRBY', job.record, 'fence', 1) < micros then
    set('fence', string.format('%d', micros))
  end
  if not get('first_fence') then set('first_fence', get('fence')) end
  set('state', 'running', 'worker', ARGV[4], 'lease_until', lease_until, 'claim_token', ARGV[6],
    'claimed_at', seconds(now))
  redis.call('HDEL', job.record, 'not_before')
  leave_queue()
  redis.call('ZADD', job.running, lease_until, job.id)
  return claimed()
end
if state == 'running' then
  -- The client repeats a call whose reply it lost: it holds the lease already.
  if get('claim_token') == ARGV[6] then return claimed() end
  return {'leased', state}
end
if state == 'cancelled' or state == 'expired' then return {state, state} end
return {'ended', state}
