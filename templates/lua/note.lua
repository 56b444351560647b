-- Writes a rollout that differs in what its gates found last, which is no move.
--
-- KEYS[1]  the rollout, JSON (string)
-- ARGV[1]  what it must be now
-- ARGV[2]  what it is then
--
-- Returns 1, or 0 if it is another by now.

if redis.call('GET', KEYS[1]) == ARGV[2] then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
