-- The next message of a queue. Reads only.
--
-- KEYS[1]  the queue (list)
-- ARGV[1]  how many bytes a message has, at most
--
-- Returns it, '' for one that is longer, or nothing of an empty queue. Whoever may ring writes messages of
-- any length.

local message = redis.call('LINDEX', KEYS[1], -1)
if message and #message > tonumber(ARGV[1]) then return '' end
return message
