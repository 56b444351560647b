-- Writes a job's result, once, for the holder of the newest fence.
--
-- ARGV[4]  fence of the claim
-- ARGV[5]  the state to end in
-- ARGV[6]  the result, msgpack
-- ARGV[7]  its cache state
-- ARGV[8]  the number of its completion's tokens
-- ARGV[9]  its error's code, or ''
--
-- Returns 1 if the record holds this result, 0 if nothing was changed.

if held(ARGV[4]) then
  local now = server_time()
  set('result', ARGV[6])
  finish(ARGV[5], now)
  tell_flow(now, 'out', '1', 'busy', busy_ms(now))
  tell_outcome(ARGV[5], now, ARGV[7], ARGV[8], ARGV[9])
  return 1
end
-- The client repeats a call whose reply it lost.
if get('fence') == ARGV[4] and get('result') == ARGV[6] then return 1 end
return 0
