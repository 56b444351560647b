-- Stores a version under the next number of its template, or finds it by its digest.
--
-- KEYS[1]  digest -> number (hash)
-- KEYS[2]  number -> digest (hash)
-- KEYS[3]  the version (string)
-- KEYS[4]  label -> number (hash)
-- KEYS[5]  names of the tenant's templates (set)
-- ARGV[1]  digest
-- ARGV[2]  the number that the version was written for
-- ARGV[3]  the version, msgpack
-- ARGV[4]  template name
-- ARGV[5]  label that a template's first version gets
--
-- Returns {'known', number}, {'created'}, or {'taken'} if the number was given away meanwhile.
-- A known version that was lost is written anew when ARGV[2] is its number.

local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  -- Whole again, should the version have been lost; the number it was given stays.
  if redis.call('EXISTS', KEYS[3]) == 0 and known == ARGV[2] then
    redis.call('SET', KEYS[3], ARGV[3])
  end
  return {'known', known}
end
if redis.call('HLEN', KEYS[2]) + 1 ~= tonumber(ARGV[2]) then return {'taken'} end

redis.call('SET', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[5], ARGV[4])
if ARGV[2] == '1' then redis.call('HSETNX', KEYS[4], ARGV[5], '1') end
return {'created'}
