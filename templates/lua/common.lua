-- Put in front of publish.lua and move.lua by templates/registry.py; not run by itself.
--
-- KEYS[1]   how often the template was changed (string)
-- KEYS[2]   its journal (stream)
-- KEYS[3]   label -> number (hash)
-- KEYS[4]   its rollout, JSON (string)
-- KEYS[5]   names of the tenant's templates with a rollout (set)
-- ARGV[1]   a token that differs from move to move
-- ARGV[2]   KEYS[1] when the move was decided
-- ARGV[3]   KEYS[4] then, or ''
-- ARGV[4]   the template's name
-- ARGV[5..9]  who, action, from, to, why
-- ARGV[10]  what changes but for the rollout, JSON (templates/rollouts/journal.py)
-- ARGV[11]  'keep', 'end' or 'set' the rollout
-- ARGV[12]  the rollout but for its times, JSON without its closing brace
-- ARGV[13]  when it started, or '' for now
-- ARGV[14]  since when it is in its phase, or '' for now
-- Scripts name what follows from KEYS[6] and ARGV[15] on.
--
-- Number -> when it was retired (hash) is not in KEYS but named beside KEYS[1]: workers make moves
-- too and may not write it.

local function at_revision() return redis.call('GET', KEYS[1]) or '0' end

-- True while nothing was changed since the move was decided.
local function as_decided()
  return at_revision() == ARGV[2] and (redis.call('GET', KEYS[4]) or '') == ARGV[3]
end

-- The change that this very call made before, when the client repeats one whose reply it lost.
local function made_before()
  local moves = tonumber(at_revision()) - tonumber(ARGV[2])
  if moves < 1 or moves > 100 then return nil end
  local entries = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', string.format('%d', moves))
  local fields = entries[#entries] and entries[#entries][2] or {}
  local found = {}
  for at = 1, #fields, 2 do found[fields[at]] = fields[at + 1] end
  return found.token == ARGV[1] and found.change or nil
end

-- Makes the move and gives back what the journal has of it.
local function make_move()
  local time = redis.call('TIME')
  local now = string.format('%d.%06d', time[1], time[2])
  local change, rollout = ARGV[10], nil
  if ARGV[11] ~= 'keep' then
    if ARGV[11] == 'set' then
      rollout = ARGV[12] .. ',"started_at":' .. (ARGV[13] ~= '' and ARGV[13] or now)
        .. ',"since":' .. (ARGV[14] ~= '' and ARGV[14] or now) .. '}'
    end
    change = string.sub(change, 1, -2) .. (change ~= '{}' and ',' or '')
      .. '"rollout":' .. (rollout or 'null') .. '}'
  end
  local parts = cjson.decode(ARGV[10])
  local retired = string.sub(KEYS[1], 1, -#'revision' - 1) .. 'retired'
  -- First of all writes are those that may be refused, to who has no right or to all when Redis is
  -- out of memory: then nothing is written.
  local marked = {}
  for number, so in pairs(parts.retired or {}) do
    if so and redis.call('HSETNX', retired, number, now) == 1 then marked[#marked + 1] = number end
  end
  local told = redis.pcall('XADD', KEYS[2], '*', 'revision', string.format('%d', ARGV[2] + 1),
    'who', ARGV[5], 'action', ARGV[6], 'from', ARGV[7], 'to', ARGV[8], 'why', ARGV[9],
    'change', change, 'token', ARGV[1])
  if type(told) == 'table' and told.err then
    -- The journal takes no more: a move that it does not have is none.
    for _, number in ipairs(marked) do redis.call('HDEL', retired, number) end
    error(told)
  end
  redis.call('INCR', KEYS[1])
  for label, number in pairs(parts.labels or {}) do
    if number == cjson.null then
      redis.call('HDEL', KEYS[3], label)
    else
      redis.call('HSET', KEYS[3], label, string.format('%d', number))
    end
  end
  for number, so in pairs(parts.retired or {}) do
    if not so then redis.call('HDEL', retired, number) end
  end
  if rollout then
    redis.call('SET', KEYS[4], rollout)
    redis.call('SADD', KEYS[5], ARGV[4])
  elseif ARGV[11] == 'end' then
    redis.call('DEL', KEYS[4])
    redis.call('SREM', KEYS[5], ARGV[4])
  end
  return change
end
