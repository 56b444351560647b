-- The job's state, after ending it if its deadline passed while nobody held it.
--
-- Returns the state, or nothing without a record.

return settle(server_time()) or false
