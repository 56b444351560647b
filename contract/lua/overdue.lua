-- Finds a tenant's jobs that may lack a message. Those that are cancelled or past their deadline are
-- ended, for in a queue without workers nobody else would; they count under the tenant's limits.
--
-- KEYS[1]  the record of no job: those of the tenant's jobs differ from it in the last 32 characters
-- KEYS[4]  jobs that wait for one of the tenant's others to end (sorted set: id by time of submit)
-- KEYS[5]  jobs that wait for another attempt (sorted set: id by when to ring)
-- ARGV[4]  how many of each kind are told of, at most
-- ARGV[5]  length of a lease in seconds
-- ARGV[6]  '1' where a lease that is over says that its worker is gone, else '0'
--
-- Returns {{id, queue, state, '1' if its message was used up, else '0'}, ...}, longest overdue first of
-- each kind: jobs whose worker is gone, held ones that there is room for now, those due for another
-- attempt, and others that were queued for long.
--
-- Records and most of the indexes are written by producers. An entry without a record as it should be
-- is taken out of all indexes; how much is read follows from ARGV alone.

-- Within bounds of its own: a tenant's users can call this with any arguments.
local most, lease_s = math.min(1000, tonumber(ARGV[4])), tonumber(ARGV[5])
local held, retries = KEYS[4], KEYS[5]
local tenant = string.match(job.queued, '^pq:(.+):queued$')
local records = string.sub(job.record, 1, -33)
local now = server_time()
local later = seconds(now + lease_s)
local found, told = {}, {}

local LONGEST = 256 -- bytes of a field; ours have fewer
local FIELDS = {'state', 'queue', 'template', 'deadline_at', 'lease_until', 'not_before', 'cancel_requested'}

local function late(index, count)
  return redis.call('ZRANGE', index, '-inf', seconds(now), 'BYSCORE', 'LIMIT', 0, count)
end

-- Makes `id` the job that all else is about; its record, or nil where there is none as it should be.
local function record_of(id)
  local last = string.sub(id, #tenant + 2)
  if id ~= tenant .. '.' .. last or #last ~= 32 or string.find(last, '[^0-9a-f]') then return nil end
  job.id, job.record = id, records .. last
  local record = {}
  for _, field in ipairs(FIELDS) do
    local length = redis.pcall('HSTRLEN', job.record, field)
    if type(length) ~= 'number' then
      if string.find(length.err, 'WRONGTYPE') then return nil end
      error(length.err)
    end
    if length > LONGEST then return nil end
    record[field] = length > 0 and get(field) or nil
  end
  local owner = string.match(record.queue or '', '^([a-z0-9_-]+)/[a-z0-9_/-]+$')
  if not record.state or owner ~= tenant then return nil end
  for _, field in ipairs({'deadline_at', record.state == 'running' and 'lease_until' or nil}) do
    if not string.find(record[field] or '', '^%d+%.?%d*$') then return nil end
  end
  return record
end

-- The record of an index's entry, if it is one in this state that a worker may take now; else the
-- index follows the record.
local function open(id, index, state)
  if told[id] then return nil end
  local record = record_of(id)
  if not record then
    for _, each in ipairs({job.queued, job.running, held, retries}) do redis.call('ZREM', each, id) end
    return nil
  end
  if record.state == state then
    local after, free = settle(now)
    if free then return record end
    if after == 'running' then
      redis.call('ZADD', index, record.lease_until, id)
      return nil
    end
  end
  redis.call('ZREM', index, id)
  return nil
end

local function tell(id, record, state, silent)
  told[id] = true
  table.insert(found, {id, record.queue, state, silent})
end

if ARGV[6] == '1' then
  for _, id in ipairs(late(job.running, most)) do
    local record = open(id, job.running, 'running')
    if record and now - tonumber(record.lease_until) >= lease_s then
      -- Nobody came for it in the time of another lease: it waits, and takes no running job's place.
      set('not_before', seconds(now))
      queue_up(now)
      redis.call('ZADD', retries, seconds(now), id)
      tell(id, record, 'queued', '1')
    elseif record then
      tell(id, record, 'running', '1')
    end
  end
end

local room = most
local max_running = tonumber(redis.call('HGET', beside_queued('limits'), 'max_running') or '')
if max_running then room = math.min(room, max_running - redis.call('ZCARD', job.running)) end
for _, id in ipairs(redis.call('ZRANGE', held, 0, most - 1)) do
  local record = open(id, held, 'queued')
  if record and room > 0 then
    tell(id, record, 'queued', '1')
    room = room - 1
  end
end

-- An attempt that has begun takes its job out of no second set, so entries of such are among these.
for _, look in ipairs({{retries, 4 * most}, {job.queued, most}}) do
  local index, left = look[1], most
  for _, id in ipairs(late(index, look[2])) do
    if left == 0 then break end
    local record = open(id, index, 'queued')
    if record and index == retries and not record.not_before then
      redis.call('ZREM', index, id)
    elseif record and redis.call('ZSCORE', held, id) then
      redis.call('ZADD', index, later, id) -- the end of another rings for it
    elseif record then
      tell(id, record, 'queued', record.not_before and '1' or '0')
      left = left - 1
    end
  end
end

return found
