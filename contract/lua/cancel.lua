-- Ends a job that nobody holds; asks the holder of a running one to stop.
--
-- Returns {'cancelled', state after} or {'ended', state} or {'not_found'}.

local now = server_time()
local state, free = settle(now)
if not state then return {'not_found'} end
if free then
  finish('cancelled', now)
  return {'cancelled', 'cancelled'}
end
if state == 'running' then
  set('cancel_requested', '1')
  return {'cancelled', state}
end
return {'ended', state}
