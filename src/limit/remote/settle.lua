-- Requests have ended, or need their slots no more.
-- ARGV: ledger; then 'f', id, tag (a slot is free), or 's', id, tag, second, reserved, used, budgets; each: key, keep, own.
local ledger = ARGV[1]
local at = 2
while ARGV[at] do
  local kind, id, tag = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  at = at + 3
  if kind == 'f' then
    redis.call('ZREM', tag .. ':c', id)
  else
    local came, reserved, used = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    drop(tag, id)
    if used < reserved then
      add(tag .. ':t', came, used - reserved)
    elseif reserved > 0 then
      add(tag .. ':t', second, used - reserved)
    end
    local budgets = tonumber(ARGV[at + 3])
    at = at + 4
    for _ = 1, budgets do
      spent(ARGV[at], tonumber(ARGV[at + 1]), ledger, ARGV[at + 2])
      at = at + 3
    end
  end
end
return second
