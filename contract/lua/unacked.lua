-- How many messages workers have taken and not acknowledged, by queue. Reads only.
--
-- ARGV[1]  the hash in which kombu keeps them (delivery tag -> [message, exchange, routing key])
-- ARGV[2]  beyond how many they are only counted, not told apart
--
-- Returns JSON: {total, queues: {queue: count}}, or {total} alone.

local total = redis.call('HLEN', ARGV[1])
if total > tonumber(ARGV[2]) then return cjson.encode({total = total}) end
local queues = {}
for _, entry in ipairs(redis.call('HVALS', ARGV[1])) do
  local queue = string.match(entry, '"([a-z0-9_/-]+)"%]$')
  if queue then queues[queue] = (queues[queue] or 0) + 1 end
end
return cjson.encode({total = total, queues = queues})
