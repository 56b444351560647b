-- Tells the holder of a claim why it should stop. Reads only.
--
-- ARGV[4]  fence of the claim
--
-- Returns 'lost', 'cancelled', 'expired' or nothing.

if not held(ARGV[4]) then return 'lost' end
if get('cancel_requested') == '1' then return 'cancelled' end
if get_number('deadline_at') <= server_time() then return 'expired' end
return false
