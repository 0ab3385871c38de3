"""Holds the scripts that the store of Redis runs on the server, each as one transaction.

Their keys: the position of the sink, the names of its rows, the sinks by their templates; and position and names of the
rebuild of this sink or, in a rebuild, of the sink. A rebuild writes over the rows, so no runner writes until it
has ended. What it would delete goes to the names of the sink, of which the exchange deletes those that are not new.
"""

from typing import Final

_CLEAR: Final = """
local function clear(names)
  while true do
    local found = redis.call('ZRANGE', names, 0, 999)
    if #found == 0 then return end
    redis.call('UNLINK', unpack(found))
    redis.call('ZREMRANGEBYRANK', names, 0, 999)
  end
end
"""
_KEEP: Final = """
local function keep()
  redis.call('ZUNIONSTORE', KEYS[5], 2, KEYS[5], KEYS[2], 'AGGREGATE', 'MAX')
  redis.call('DEL', KEYS[2])
end
"""
OPEN: Final = """
local found = redis.call('HMGET', KEYS[1], 'log', 'mapping', 'generation', 'next', 'loaded', 'revision')
local owner = redis.call('HGET', KEYS[3], ARGV[2])
local rebuilds = ARGV[6] == 'rebuild'
local is_ending = not rebuilds and redis.call('EXISTS', KEYS[4]) == 1
local is_ours = (not owner or owner == ARGV[1]) and (not found[4] or found[1] == ARGV[3] and found[2] == ARGV[4])
if is_ours and not is_ending and tonumber(found[3] or 0) <= tonumber(ARGV[5]) then
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[1])
  redis.call('HSET', KEYS[1], 'target', ARGV[2], 'log', ARGV[3], 'mapping', ARGV[4], 'generation', ARGV[5])
  local other = rebuilds and redis.call('HGET', KEYS[4], 'generation')
  if other and tonumber(other) < tonumber(ARGV[5]) then redis.call('HSET', KEYS[4], 'generation', ARGV[5]) end
end
return {owner, is_ending and 1, unpack(found, 1, 6)}
"""
_CHECK: Final = """
local function check(name, names)
  local commands = {
    {'UNLINK', name}, {'SET', name, ''}, {'HSET', name, '', ''}, {'HDEL', name, ''}, {'TYPE', name},
    {'PEXPIRE', name, 1}, {'ZADD', names, 1, ''}, {'ZREM', names, ''},
  }
  for _, command in ipairs(commands) do
    if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(command)) then
      return {err = 'NOPERM it may not run ' .. command[1] .. ' on ' .. command[2]}
    end
  end
end
"""
WRITE: Final = f"""{_CLEAR}{_KEEP}{_CHECK}
local expected, place, truncates, changes, ttl, rebuilds = unpack(cmsgpack.unpack(ARGV[1]))
local found = redis.call('HMGET', KEYS[1], 'generation', 'next', 'loaded', 'revision')
for at = 1, 4 do
  if (found[at] or '') ~= expected[at] then return {{found[1], found[2]}} end
end
local refusal = #changes > 0 and check(changes[1][2], KEYS[2])
if refusal then return refusal end
if truncates or #changes > 0 then
  redis.call('HINCRBY', KEYS[1], 'writes', 1)  -- first: it fails without memory, and what comes later does not
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now))
  if truncates and rebuilds then keep() elseif truncates then clear(KEYS[2]) end
  local added = {{}}
  local function add()
    if #added > 0 then redis.call('ZADD', KEYS[2], unpack(added)) end
    added = {{}}
  end
  for _, change in ipairs(changes) do
    local command, name = change[1], change[2]
    if command == 'UNLINK' then
      if rebuilds then redis.call('ZADD', KEYS[5], '+inf', name) else redis.call('UNLINK', name) end
      add()
      redis.call('ZREM', KEYS[2], name)
    else
      if command == 'SET' then
        redis.call('SET', name, change[3])
      else
        if command == 'NEW' or redis.call('TYPE', name).ok ~= 'hash' then redis.call('UNLINK', name) end
        redis.call('HSET', name, unpack(change, 4))
        if #change[3] > 0 then redis.call('HDEL', name, unpack(change[3])) end
      end
      if ttl > 0 then redis.call('PEXPIRE', name, ttl) end
      added[#added + 1] = ttl > 0 and now + ttl or '+inf'
      added[#added + 1] = name
      if #added == 1000 then add() end
    end
  end
  add()
end
redis.call('HSET', KEYS[1], 'next', place[1], 'loaded', place[2], 'revision', place[3])
return false
"""
PAGE: Final = """
local rows = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[2])) do
  local found = redis.pcall(ARGV[3], name)
  if type(found) == 'table' and found.err then found = '' end
  rows[#rows + 1] = {name, found}
end
return {redis.call('HMGET', KEYS[1], 'generation', 'writes'), rows}
"""
DROP: Final = f"""{_CLEAR}
clear(KEYS[2])
clear(KEYS[5])
redis.call('DEL', KEYS[1], KEYS[4])
if redis.call('HGET', KEYS[3], ARGV[2]) == ARGV[1] then redis.call('HDEL', KEYS[3], ARGV[2]) end
"""
RESTART: Final = f"""{_KEEP}
keep()
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'generation', 0)  -- it has not ended
"""
EXCHANGE: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local found, gone = redis.call('ZRANGE', KEYS[5], 0, 999), {}
for _, name in ipairs(found) do
  if not redis.call('ZSCORE', KEYS[2], name) then gone[#gone + 1] = name end
end
if #gone > 0 then redis.call('UNLINK', unpack(gone)) end
if #found > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[5], 0, #found - 1)
  return 1
end
local before = redis.call('HGET', KEYS[4], 'target')
if before and before ~= redis.call('HGET', KEYS[1], 'target') then redis.call('HDEL', KEYS[3], before) end
redis.call('HSET', KEYS[1], 'generation', ARGV[1])
redis.call('RENAME', KEYS[1], KEYS[4])
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[5]) end
return 0
"""
