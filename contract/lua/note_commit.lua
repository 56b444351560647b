-- Adds how long the commit took, which is known only after it.
--
-- ARGV[4]  fence of the claim
-- ARGV[5]  seconds

if get('fence') == ARGV[4] and get('result') then set('commit_s', ARGV[5]) end
