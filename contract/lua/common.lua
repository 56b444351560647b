-- Put in front of every job script by contract/records.py; not run by itself.
--
-- KEYS[1]  the job's record (hash)
-- KEYS[2]  the tenant's queued jobs (sorted set: id by when to ring again if it is still there)
-- KEYS[3]  the tenant's running jobs (sorted set: id by end of lease)
-- ARGV[1]  the job's id
-- ARGV[2]  how long the record is kept after the end, in milliseconds
-- ARGV[3]  the tenant's channel of notices
-- Scripts name what follows from KEYS[4] and ARGV[4] on.
--
-- Some keys are not in KEYS. A template's waiting set and a rollout's outcomes are not known before
-- the record is read; their names are made here, beside KEYS[2], and not read from the record: a
-- producer can write its records, and a worker must not be led to write another tenant's keys. The
-- tenant's limits may only be read by those who submit, and a function's KEYS have to be writable by
-- its caller.
--
-- Time is the server's alone: workers' clocks may be minutes apart.

local job = {
  record = KEYS[1], queued = KEYS[2], running = KEYS[3],
  id = ARGV[1], keep_ms = ARGV[2], channel = ARGV[3],
}

local function server_time()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Lua's own conversion keeps 14 digits, too few for a time with its microseconds.
local function seconds(value) return string.format('%.6f', value) end

local function get(field) return redis.call('HGET', job.record, field) end

local function get_number(field) return tonumber(get(field) or '') end

local function set(...) redis.call('HSET', job.record, ...) end

local function beside_queued(name) return string.sub(job.queued, 1, -#'queued' - 1) .. name end

local function waiting_set() return beside_queued('waiting:' .. (get('template') or '')) end

local function leave_queue()
  redis.call('ZREM', job.queued, job.id)
  redis.call('ZREM', waiting_set(), job.id)
end

local function finish(state, now)
  set('state', state, 'finished_at', seconds(now))
  leave_queue()
  redis.call('ZREM', job.running, job.id)
  redis.call('PEXPIRE', job.record, job.keep_ms)
  redis.call('PUBLISH', job.channel, job.id)
end

-- Adds to what is known of a rollout's jobs of one version; nothing for a job of no rollout. The
-- stream is named beside KEYS[2], as above. It may be damaged, which is no reason to fail: pcall.
local function tell_rollout(...)
  local id, digest = get('rollout') or '', get('digest') or ''
  if #id ~= 16 or #digest ~= 64 or string.find(id .. digest, '[^0-9a-f]') then return end
  local stream = beside_queued('outcomes:' .. id .. ':' .. digest)
  redis.pcall('XADD', stream, 'MAXLEN', '~', '20000', '*', ...)
  redis.pcall('PEXPIRE', stream, '604800000')
end

-- Tells how a job ended: `cache` is its cache state, `tokens` how many its completion has, `code` its
-- error's. A cancelled job says nothing of its version, nor does one that expired before any worker
-- had it: that is the queue's fault. Nor one that an operator gave its attempts again: that took hours.
local function tell_outcome(state, now, cache, tokens, code)
  local taken_up = state == 'expired' and (get_number('attempt') or 0) > 0
  if state ~= 'succeeded' and state ~= 'failed' and not taken_up then return end
  if get('revived') then return end
  local taken = seconds(now - (get_number('created_at') or now))
  tell_rollout('s', state, 'c', cache, 't', taken, 'n', tokens, 'e', code)
end

-- Ends a job that nobody holds and that is cancelled or past its deadline.
-- Returns its state (nil without a record) and whether a worker may take it now.
local function settle(now)
  local state = get('state')
  if not state then
    redis.call('ZREM', job.queued, job.id)
    redis.call('ZREM', job.running, job.id)
    return nil, false
  end
  local free = state == 'queued' or (state == 'running' and get_number('lease_until') <= now)
  if not free then return state, false end
  if get('cancel_requested') == '1' then
    state = 'cancelled'
  elseif get_number('deadline_at') <= now then
    state = 'expired'
  else
    return state, true
  end
  finish(state, now)
  tell_outcome(state, now, '', '0', 'expired')
  return state, false
end

-- Adds to what came and went of a template's jobs for one model, in spans of ten seconds that are kept
-- for a quarter of an hour: `in` jobs submitted, `out` jobs that a worker ended, `busy` milliseconds
-- that workers had them. Written in the same step as the record, since whoever decides how many workers
-- there shall be must not see one without the other. It may be damaged or refused, which is no reason
-- to fail: pcall. The key is named beside KEYS[2], as above.
local function tell_flow(now, ...)
  local model = string.match(get('queue') or '', '/([0-9a-f]+)$')
  if not model or #model ~= 12 then return end
  local span = string.format('%d', math.floor(now / 10))
  local flow = beside_queued('flow:' .. span)
  local queue = (get('template') or '') .. '/' .. model
  local told = {...}
  for i = 1, #told, 2 do
    local sum = redis.pcall('HINCRBY', flow, told[i] .. ':' .. queue, told[i + 1])
    if sum == tonumber(told[i + 1]) then redis.pcall('PEXPIRE', flow, '900000') end
  end
end

-- How long a worker has had the job, in milliseconds; a record may say anything.
local function busy_ms(now)
  local taken = now - (get_number('claimed_at') or now)
  if not (taken > 0) then return '0' end
  return string.format('%d', math.floor(math.min(taken, 86400) * 1000))
end

-- Back among those that wait. `ring_at` is when the janitor rings for it.
local function queue_up(ring_at)
  set('state', 'queued')
  redis.call('HDEL', job.record, 'worker', 'lease_until', 'claim_token')
  redis.call('ZREM', job.running, job.id)
  redis.call('ZADD', job.queued, seconds(ring_at), job.id)
  redis.call('ZADD', waiting_set(), get('deadline_at'), job.id)
end

-- Ends a job that used up its attempts, and puts it where operators look for such.
local function bury(dead, dead_ms, now)
  set('dead', '1')
  finish('failed', now)
  redis.call('PEXPIRE', job.record, dead_ms)
  redis.call('ZREMRANGEBYSCORE', dead, '-inf', seconds(now - tonumber(dead_ms) / 1000))
  redis.call('ZADD', dead, seconds(now), job.id)
end

-- What a submit under an idempotency key comes to when there was one before, else nil. The record of
-- the key's first job is not in KEYS: its name differs from KEYS[1] in the last 32 characters only.
local function first_under(key, input_digest)
  local first = redis.call('GET', key)
  if not first then return nil end
  local record = string.sub(job.record, 1, -33) .. string.sub(first, -32)
  local state = redis.call('HGET', record, 'state')
  if not state then return nil end
  if redis.call('HGET', record, 'input_digest') ~= input_digest then
    return {'conflict', first, state}
  end
  redis.call('HINCRBY', record, 'submits', 1)
  return {'existing', first, state, redis.call('HGET', record, 'queue')}
end

local function held(fence) return get('state') == 'running' and get('fence') == fence end
