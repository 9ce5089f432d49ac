-- Lets a request through, or says what is used up: of its key and its model, all or nothing.
-- ARGV: id, lease, ledger, subjects; each: tag, rpm, tpm, tokens, concurrent, charge, budgets; each: key, keep, limit, own.
-- 0: not limited. Answers: 1 or 0, whose, what, wait, which budget, left, held, second; each: requests, tokens, held, spent...
local id, lease, ledger = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local subjects = {}
local at = 5
for n = 1, tonumber(ARGV[4]) do
  local one = {
    tag = ARGV[at], rpm = tonumber(ARGV[at + 1]), tpm = tonumber(ARGV[at + 2]), tokens = tonumber(ARGV[at + 3]),
    concurrent = tonumber(ARGV[at + 4]), charge = ARGV[at + 5], budgets = {}, requests = 0, used = 0,
  }
  local budgets = tonumber(ARGV[at + 6])
  at = at + 7
  for b = 1, budgets do
    one.budgets[b] = { key = ARGV[at], keep = tonumber(ARGV[at + 1]), limit = tonumber(ARGV[at + 2]), own = ARGV[at + 3] }
    at = at + 4
  end
  subjects[n] = one
end

local answer = { 1, 0, 0, 0, 0, 0, 0, second }
local function full(whose, what, wait, which, left, held)
  if answer[1] == 1 then answer = { 0, whose, what, wait, which or 0, left or 0, held or 0, second } end
end

for n, one in ipairs(subjects) do
  purge(one.tag)
  one.held = held(one.tag)
  local charge = tonumber(one.charge)
  for b, budget in ipairs(one.budgets) do
    budget.spent = spent(budget.key, budget.keep, ledger, budget.own)
    local free = budget.limit - budget.spent
    local left = free - one.held
    if left <= 0 or charge > left then
      full(n, 4, 0, b, left, (free > 0 and charge <= free) and 1 or 0)
    end
  end
  local oldest
  if one.rpm > 0 then
    one.requests, oldest = minute(one.tag .. ':r')
    if one.requests >= one.rpm then full(n, 1, wait(one.tag .. ':r', one.requests, oldest, one.rpm - 1)) end
  end
  if one.tpm > 0 then
    one.used, oldest = minute(one.tag .. ':t')
    if one.used + one.tokens > one.tpm then full(n, 2, wait(one.tag .. ':t', one.used, oldest, one.tpm - one.tokens)) end
  end
  if one.concurrent > 0 and redis.call('ZCARD', one.tag .. ':c') >= one.concurrent then full(n, 3, 1000) end
end

for _, one in ipairs(subjects) do
  if answer[1] == 1 then
    if one.rpm > 0 then
      add(one.tag .. ':r', second, 1)
      one.requests = one.requests + 1
    end
    if one.tpm > 0 then
      add(one.tag .. ':t', second, one.tokens)
      one.used = one.used + one.tokens
    end
    hold(one.tag, id, lease, one.concurrent > 0, one.charge)
    one.held = held(one.tag)
  end
  table.insert(answer, one.requests)
  table.insert(answer, one.used)
  table.insert(answer, one.held)
  for _, budget in ipairs(one.budgets) do table.insert(answer, budget.spent) end
end
return answer
