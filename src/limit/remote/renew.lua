-- A gateway lives: its requests keep what they hold, and it hears what others do.
-- ARGV: node, lease, ledger, epoch; then tag, budgets; each: key, keep, own; requests; each: id, slot, held.
-- Answers: nodes, epoch; for each tag: held, spent... The epoch is new when the store has lost what it knew.
local node, lease, ledger = ARGV[1], tonumber(ARGV[2]), ARGV[3]
redis.call('ZADD', 'weir:nodes', now + lease, node)
redis.call('ZREMRANGEBYSCORE', 'weir:nodes', '-inf', now)
redis.call('SET', 'weir:epoch', ARGV[4], 'NX')
local answer = { redis.call('ZCARD', 'weir:nodes'), tonumber(redis.call('GET', 'weir:epoch')) }
local at = 5
while ARGV[at] do
  local tag, budgets = ARGV[at], tonumber(ARGV[at + 1])
  local sums = {}
  at = at + 2
  for b = 1, budgets do
    sums[b] = spent(ARGV[at], tonumber(ARGV[at + 1]), ledger, ARGV[at + 2])
    at = at + 3
  end
  local requests = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, requests do
    hold(tag, ARGV[at], lease, ARGV[at + 1] == '1', ARGV[at + 2])
    at = at + 3
  end
  purge(tag)
  table.insert(answer, held(tag))
  for _, sum in ipairs(sums) do table.insert(answer, sum) end
end
return answer
