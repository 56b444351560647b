-- Erases a record whose submit failed half-way, unless somebody else has seen the job.
--
-- KEYS[4]  the idempotency key (string), or absent
--
-- It is not counted among what came any more (`tell_flow`).
--
-- Returns 1 if the record is gone now, 0 if it was claimed or belongs to another submit too.

if not get('state') then return 1 end
if get('state') ~= 'queued' or get('fence') ~= '0' or get('submits') ~= '1' then return 0 end
leave_queue()
-- Nor did it come, in the span where it was counted; one that is kept no longer is not made anew. The
-- record may say any time.
local now, submitted = server_time(), get_number('created_at')
if submitted and submitted <= now and now - submitted < 800 then tell_flow(submitted, 'in', '-1') end
redis.call('DEL', job.record)
if KEYS[4] and redis.call('GET', KEYS[4]) == job.id then redis.call('DEL', KEYS[4]) end
return 1
