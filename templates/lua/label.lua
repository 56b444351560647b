-- Moves, makes or removes a label if it is where the caller thinks it is.
--
-- KEYS[1]  label -> number (hash)
-- KEYS[2]  number -> digest (hash)
-- KEYS[3]  number -> when it was retired (hash)
-- ARGV[1]  label
-- ARGV[2]  the number to point to, or '' to remove the label
-- ARGV[3]  the number it must point to now, '' if it must not exist, '*' for any
--
-- Returns {'ok'}, {'no_version'}, {'retired'}, {'no_label'} (nothing to remove) or
-- {'differs', number or ''}.

local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if ARGV[3] ~= '*' and now ~= ARGV[3] then return {'differs', now} end
if ARGV[2] == '' then
  if now == '' then return {'no_label'} end
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {'ok'}
end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then return {'no_version'} end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 then return {'retired'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'ok'}
