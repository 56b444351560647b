-- Retires a version that no label points to, or takes that back.
--
-- KEYS[1]  label -> number (hash)
-- KEYS[2]  number -> digest (hash)
-- KEYS[3]  number -> when it was retired (hash)
-- ARGV[1]  the number
-- ARGV[2]  the time, or '' to take it back
--
-- Returns {'ok'}, {'no_version'} or {'labelled', label}.

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return {'no_version'} end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[3], ARGV[1])
  return {'ok'}
end
local labels = redis.call('HGETALL', KEYS[1])
for at = 1, #labels, 2 do
  if labels[at + 1] == ARGV[1] then return {'labelled', labels[at]} end
end
redis.call('HSETNX', KEYS[3], ARGV[1], ARGV[2])
return {'ok'}
