-- The newest entries of a stream that is written by those whom its reader need not trust. Reads only.
--
-- ARGV[1]  the stream: not in KEYS, which a function's caller has to be able to write
-- ARGV[2]  newest id to look at, as XREVRANGE has it
-- ARGV[3]  oldest id
-- ARGV[4]  how many entries, at most
-- ARGV[5]  how many bytes names and values of an entry have, at most; a larger one is left out
-- ARGV[6]  after how many bytes of entries, left out or not, to stop
--
-- Returns {bytes looked at, {id, fields}...}, with the id alone of an entry that is left out.
--
-- One entry at a time, since nothing tells how large the next one is.

local function size_of(fields)
  local bytes = 0
  for i = 1, #fields do bytes = bytes + #fields[i] end
  return bytes
end

-- Bounds of its own too: a tenant's users can call this with any arguments.
local most, most_bytes = math.min(5000, tonumber(ARGV[4])), math.min(2 ^ 23, tonumber(ARGV[6]))

local found, bytes, last = {0}, 0, ARGV[2]
while #found <= most and bytes <= most_bytes do
  local entry = redis.call('XREVRANGE', ARGV[1], last, ARGV[3], 'COUNT', '1')[1]
  if not entry then break end
  local size = size_of(entry[2])
  bytes = bytes + size
  found[#found + 1] = size <= tonumber(ARGV[5]) and entry or {entry[1]}
  last = '(' .. entry[1]
end
found[1] = bytes
return found
