-- Writes a score of a job that succeeded; the last one of a name counts.
--
-- ARGV[4]  name
-- ARGV[5]  value, a finite number
-- ARGV[6]  how many names a job may have
--
-- Returns {'scored'}, {'full'}, {'not_succeeded', state} or {'not_found'}.

local state = settle(server_time())
if not state then return {'not_found'} end
if state ~= 'succeeded' then return {'not_succeeded', state} end
local field = 'score:' .. ARGV[4]
if not get(field) then
  local names = 0
  for _, name in ipairs(redis.call('HKEYS', job.record)) do
    if string.sub(name, 1, 6) == 'score:' then names = names + 1 end
  end
  if names >= tonumber(ARGV[6]) then return {'full'} end
end
set(field, ARGV[5])
-- By job, so that a reader counts the last one only.
tell_rollout('score', ARGV[4], 'value', ARGV[5], 'job', string.sub(job.id, -32))
return {'scored'}
