-- What the scripts share. One clock for all gateways: the store's own.
local time = redis.call('TIME')
local second = tonumber(time[1])
local now = second * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A minute: a hash of second -> amount, with the sum 's' of all and the oldest second 'o' that may be there.
-- As in window.rs a second counts until all of it is older than a minute.
local function minute(key)
  local kept = redis.call('HMGET', key, 's', 'o')
  if not kept[1] then return 0, second end
  local sum, oldest = tonumber(kept[1]), tonumber(kept[2])
  if oldest >= second - 60 then return sum, oldest end
  for at = oldest, second - 61 do
    local amount = redis.call('HGET', key, at)
    if amount then
      sum = sum - tonumber(amount)
      redis.call('HDEL', key, at)
    end
  end
  redis.call('HSET', key, 's', sum, 'o', second - 60)
  return sum, second - 60
end

-- Adds to a second, or takes back from it, if it still counts.
local function add(key, at, amount)
  if amount == 0 or at < second - 60 then return end
  local sum, oldest = minute(key)
  if amount < 0 then
    local there = tonumber(redis.call('HGET', key, at) or 0)
    amount = math.max(amount, -there)
  end
  redis.call('HINCRBY', key, at, amount)
  redis.call('HSET', key, 's', sum + amount, 'o', math.min(oldest, at))
  redis.call('EXPIRE', key, 122)
end

-- Milliseconds until at most that much counts.
local function wait(key, sum, oldest, most)
  for at = oldest, second do
    local amount = redis.call('HGET', key, at)
    if amount then sum = sum - tonumber(amount) end
    if sum <= most then return (at + 61) * 1000 - now end
  end
  return 0
end

-- Requests that run: slots in ':c' and money in ':z', ':h', each until its lease ends; ':v' is the sum of the money.
local function drop(tag, id)
  redis.call('ZREM', tag .. ':c', id)
  if redis.call('ZREM', tag .. ':z', id) == 1 then
    local held = redis.call('HGET', tag .. ':h', id)
    if held then
      redis.call('HDEL', tag .. ':h', id)
      redis.call('DECRBY', tag .. ':v', held)
    end
  end
end

local function purge(tag)
  redis.call('ZREMRANGEBYSCORE', tag .. ':c', '-inf', now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':z', '-inf', now)) do drop(tag, id) end
end

local function hold(tag, id, lease, slot, held)
  if slot then redis.call('ZADD', tag .. ':c', now + lease, id) end
  if held == '0' then return end
  local before = redis.call('HGET', tag .. ':h', id)
  if before ~= held then
    if before then redis.call('DECRBY', tag .. ':v', before) end
    redis.call('INCRBY', tag .. ':v', held)
    redis.call('HSET', tag .. ':h', id, held)
  end
  redis.call('ZADD', tag .. ':z', now + lease, id)
end

local function held(tag)
  return tonumber(redis.call('GET', tag .. ':v') or 0)
end

-- Money that was spent: a hash of ledger -> what was charged through it. Each gateway tells the whole of its own,
-- which only grows, so that telling it twice, late or in another order changes nothing.
local function spent(key, keep, ledger, own)
  local known = redis.call('HGET', key, ledger)
  if own ~= '0' and tonumber(own) > tonumber(known or -1) then
    redis.call('HSET', key, ledger, own)
    if keep > 0 then redis.call('EXPIRE', key, keep) end
  end
  local sum = 0
  for _, one in ipairs(redis.call('HVALS', key)) do sum = sum + tonumber(one) end
  return sum
end
