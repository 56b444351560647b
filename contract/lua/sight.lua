-- What waits, runs, comes and goes of one tenant's jobs, of one moment. Reads only; of its library
-- alone, without what the job scripts share (contract/load.py).
--
-- ARGV[1]  what the tenant's keys begin with, `pq:acme:`
-- ARGV[2]  what its queues' keys begin with, `pq:_broker:acme/`
-- ARGV[3]  how many records that run are looked at, at most
-- ARGV[4]  how many that wait, of each template
-- ARGV[5]  how many models of a template are told apart that records name and ARGV does not
-- ARGV[6]  how many spans of ten seconds are read, the present one included
-- ARGV[7]  kombu's separator of a queue's name and a priority
-- ARGV[8]  kombu's priorities beside 0, between spaces
-- ARGV[9..]  a template's name, and the models it has versions for (12 hex digits), between spaces
--
-- Returns JSON: {now, held, max_running (absent without one), running, running_seen, templates: {name:
-- {waiting, waiting_seen, overdue, models: {model: {waiting, delayed, oldest_s, running, late, messages,
-- flow: {span: {in, out, busy}}}}}}}.
-- Below a model only those of the `seen` are counted whose records are as they should be.
--
-- Records and counters are written by producers: what is none of ours is passed over. How much work this
-- is follows from ARGV alone, within bounds of its own, and not from how much they wrote, for Redis serves
-- nobody else meanwhile; so of the counters those are read whose models are known, each by its name.

local tenant, queues = ARGV[1], ARGV[2]

-- First of all what only workers and operators may read: a tenant's users can call this function, and
-- what of it they may do is refused here, before any of its work.
local held = redis.call('ZCARD', tenant .. 'held')

-- An error, of a key that is no hash, is no number either.
local limit = redis.pcall('HGET', tenant .. 'limits', 'max_running')
local max_running = type(limit) == 'string' and tonumber(limit) or nil

local function at_most(limit, arg) return math.min(limit, tonumber(arg)) end

local most_running, most_waiting = at_most(1000, ARGV[3]), at_most(1000, ARGV[4])
local most_others, spans = at_most(64, ARGV[5]), at_most(90, ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local now_text = string.format('%.6f', now)

local templates, others = {}, {}

local function add_model(name, digest)
  local model = {waiting = 0, delayed = 0, oldest_s = 0, running = 0, late = 0, messages = 0, flow = {}}
  templates[name].models[digest] = model
  return model
end

-- The model that a record names; nil beyond those that are told apart.
local function model_of(name, digest)
  local model = templates[name].models[digest]
  if model or others[name] >= most_others then return model end
  others[name] = others[name] + 1
  return add_model(name, digest)
end

-- The template and the model of a record's queue, if it names one of the tenant's.
local function parts_of(queue)
  if type(queue) ~= 'string' then return nil end
  local owner, name, digest = string.match(queue, '^([a-z0-9_-]+)/([a-z0-9_-]+)/([0-9a-f]+)$')
  if not digest or #digest ~= 12 or 'pq:' .. owner .. ':' ~= tenant then return nil end
  return name, digest
end

local function record_of(id, ...)
  local last = string.match(id, '%.([0-9a-f]+)$')
  if not last then return {} end
  -- An error, of a key that is no hash, has no fields either.
  return redis.pcall('HMGET', tenant .. 'job:' .. last, ...)
end

local asked = {}
for i = 9, #ARGV do
  local name, rest = string.match(ARGV[i], '^(%S+)(.*)$')
  table.insert(asked, name)
  templates[name], others[name] = {models = {}}, 0
  for digest in string.gmatch(rest, '[0-9a-f]+') do add_model(name, digest) end
end

-- By the end of their leases: those whose worker died come first.
local seen = redis.call('ZRANGE', tenant .. 'running', 0, most_running - 1, 'WITHSCORES')
for i = 1, #seen, 2 do
  local record = record_of(seen[i], 'queue', 'state')
  local name, digest = parts_of(record[1])
  local model = name and record[2] == 'running' and templates[name] and model_of(name, digest)
  if model then
    model.running = model.running + 1
    if tonumber(seen[i + 1]) <= now then model.late = model.late + 1 end
  end
end

for _, name in ipairs(asked) do
  local template, waiting = templates[name], tenant .. 'waiting:' .. name
  template.waiting = redis.call('ZCOUNT', waiting, now_text, '+inf')
  template.overdue = redis.call('ZCARD', waiting) - template.waiting
  local ids = redis.call('ZRANGE', waiting, now_text, '+inf', 'BYSCORE', 'LIMIT', 0, most_waiting)
  template.waiting_seen = #ids
  for _, id in ipairs(ids) do
    local record = record_of(id, 'queue', 'state', 'created_at', 'not_before')
    local of, digest = parts_of(record[1])
    local model = of == name and record[2] == 'queued' and model_of(name, digest)
    if model then
      model.waiting = model.waiting + 1
      if (tonumber(record[4] or '') or 0) > now then model.delayed = model.delayed + 1 end
      local age = now - (tonumber(record[3] or '') or now)
      if age > model.oldest_s and age < 1e9 then model.oldest_s = age end
    end
  end
  for digest, model in pairs(template.models) do
    local queue = queues .. name .. '/' .. digest
    local lists = {queue}
    for priority in string.gmatch(ARGV[8], '%d+') do
      table.insert(lists, queue .. ARGV[7] .. priority)
    end
    for _, list in ipairs(lists) do
      local length = redis.pcall('LLEN', list)
      if type(length) == 'number' then model.messages = model.messages + length end
    end
  end
end

-- What came and went of all templates lies in one hash for each span.
local fields, flows = {}, {}
for _, name in ipairs(asked) do
  for digest, model in pairs(templates[name].models) do
    for _, kind in ipairs({'in', 'out', 'busy'}) do
      table.insert(fields, kind .. ':' .. name .. '/' .. digest)
      table.insert(flows, {of = model.flow, kind = kind})
    end
  end
end
local last = math.floor(now / 10)
for span = last - spans + 1, last do
  local text = string.format('%d', span)
  local key = tenant .. 'flow:' .. text
  -- An error, of a key that is no hash, is no length. Lua takes a few thousand values from a table.
  local some = redis.pcall('HLEN', key)
  for first = 1, (type(some) == 'number' and some > 0) and #fields or 0, 1000 do
    local upto = math.min(first + 999, #fields)
    local counts = redis.call('HMGET', key, unpack(fields, first, upto))
    for i = first, upto do
      local count = tonumber(counts[i - first + 1] or '')
      if count and count >= 0 and count < 1e12 then
        local flow = flows[i]
        flow.of[text] = flow.of[text] or {}
        flow.of[text][flow.kind] = count
      end
    end
  end
end

return cjson.encode({
  now = now_text,
  held = held,
  max_running = max_running,
  running = redis.call('ZCARD', tenant .. 'running'),
  running_seen = #seen / 2,
  templates = templates,
})
