-- Stores a version under the next number of its template, or finds it by its digest.
--
-- KEYS[6]  digest -> number (hash)
-- KEYS[7]  number -> digest (hash)
-- KEYS[8]  the version (string)
-- KEYS[9]  names of the tenant's templates (set)
-- ARGV[15]  digest
-- ARGV[16]  the number that the version was written for
-- ARGV[17]  the version, msgpack
--
-- Returns {'known', number}, {'created'}, or {'moved'} if the template was changed meanwhile.
-- A known version that was lost is written anew when ARGV[16] is its number.

local known = redis.call('HGET', KEYS[6], ARGV[15])
if known then
  -- Whole again, should the version have been lost; the number it was given stays.
  if redis.call('EXISTS', KEYS[8]) == 0 and known == ARGV[16] then
    redis.call('SET', KEYS[8], ARGV[17])
  end
  return {'known', known}
end
-- A client of a release without a journal may have given the number away.
if not as_decided() or redis.call('HEXISTS', KEYS[7], ARGV[16]) == 1 then return {'moved'} end

make_move()
redis.call('SET', KEYS[8], ARGV[17])
redis.call('HSET', KEYS[6], ARGV[15], ARGV[16])
redis.call('HSET', KEYS[7], ARGV[16], ARGV[15])
redis.call('SADD', KEYS[9], ARGV[4])
return {'created'}
