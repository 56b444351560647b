-- Moves the end of a lease.
--
-- ARGV[4]  fence of the claim
-- ARGV[5]  length of the lease in seconds, from now
--
-- Returns 'ok', 'cancel_requested' or 'lost'.

if not held(ARGV[4]) then return 'lost' end
local lease_until = seconds(server_time() + tonumber(ARGV[5]))
set('lease_until', lease_until)
redis.call('ZADD', job.running, lease_until, job.id)
if get('cancel_requested') == '1' then return 'cancel_requested' end
return 'ok'
