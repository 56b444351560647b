-- Holds a lock for longer, while it is the caller's.
--
-- KEYS[1]  the lock (string with an expiry: who holds it)
-- ARGV[1]  who asks
-- ARGV[2]  for how many milliseconds from now
--
-- Returns 1, or 0 if it is another's or nobody's.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
