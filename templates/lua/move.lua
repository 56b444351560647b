-- Changes labels, retired versions or the rollout, if they are as they were when it was decided.
--
-- Returns {'done', the change as the journal has it} or {'moved'}.

local change = made_before()
if not change then
  if not as_decided() then return {'moved'} end
  change = make_move()
end
return {'done', change}
