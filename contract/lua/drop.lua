-- Erases a dead job.
--
-- KEYS[4]  the tenant's dead jobs (sorted set: id by time of death)
--
-- Returns {'dropped'} or {'not_dead', state} or {'not_found'}.

local state = get('state')
redis.call('ZREM', KEYS[4], job.id)
if not state then return {'not_found'} end
if get('dead') ~= '1' then return {'not_dead', state} end
redis.call('DEL', job.record)
return {'dropped'}
