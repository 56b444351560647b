-- Some fields of records, none of which is longer than it should be. Reads only.
--
-- KEYS[..]  records (hashes)
-- ARGV[1]   how many bytes a field has, at most
-- ARGV[2..] names of fields
--
-- Returns for each key the values in ARGV's order, where it has them; or the name of a field that is
-- longer; or nil for a key that is no hash.
--
-- Records are written by producers. Asked for from outside, a length and then the values, a field could
-- grow in between.

local most, found = tonumber(ARGV[1]), {}

local function read(key)
  for i = 2, #ARGV do
    local length = redis.pcall('HSTRLEN', key, ARGV[i])
    if type(length) ~= 'number' then
      return not string.find(length.err, '^WRONGTYPE') and length
    end
    if length > most then return ARGV[i] end
  end
  return redis.call('HMGET', key, unpack(ARGV, 2))
end

for i, key in ipairs(KEYS) do
  found[i] = read(key)
  if type(found[i]) == 'table' and found[i].err then return found[i] end
end
return found
