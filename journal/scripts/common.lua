-- In front of every script. A script has no rollback, so each one checks everything (the kinds of its keys, every
-- number, every rule) before its first write, and then writes in this order: orphans, cut, append, terms, meta.
-- Entries and terms are opaque; of an entry only its leading digest is compared, of a term only its fields are read.
--
-- KEYS: meta, log, terms, peers, orphans (the set of epochs; the lists are orphans:<epoch>).
-- ARGV[1]: a msgpack array, per script; then the entries; then the terms that start with them.
-- Replies: {'ok', ...} or {reason, meta, terms, peers}.

local META, LOG, TERMS, PEERS, ORPHANS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local NUMBER_LIMIT = 9007199254740992
local DIGEST_LENGTH = 16
local CHUNK = 256
local FIELDS = {'incarnation', 'amnesiac', 'fence', 'granted_region', 'granted_attempt', 'base', 'committed', 'tail_epoch', 'tail_offset'}

local function stop(text)
  error({err = 'LAUREL ' .. text})
end

local function whole(value)
  local number = tonumber(value)
  if not number or number < 0 or number >= NUMBER_LIMIT or number ~= math.floor(number) then
    stop('number out of range: ' .. tostring(value))
  end
  return number
end

-- Lua's own conversion loses digits from 10^14 on.
local function text(number)
  return string.format('%.0f', number)
end

local function must_be(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    stop('broken: ' .. key .. ' is a ' .. found)
  end
end

-- Reading meta and log also proves their kind: the store raises WRONGTYPE, before any write.
local function load_store()
  local raw = redis.call('HMGET', META, unpack(FIELDS))
  local store = {
    incarnation = raw[1] or '',
    amnesiac = raw[2] == '1',
    fence = whole(raw[3] or 0),
    granted_region = raw[4] or '',
    granted_attempt = raw[5] or '',
    base = whole(raw[6] or 0),
    committed = whole(raw[7] or 0),
    tail_epoch = whole(raw[8] or 0),
    tail_offset = whole(raw[9] or 0),
    held = raw,
  }
  if store.base + redis.call('LLEN', LOG) ~= store.tail_offset then
    stop('broken: the log does not end at tail_offset ' .. text(store.tail_offset))
  end
  return store
end

local function everything(word)
  return {word, redis.call('HGETALL', META), redis.call('HGETALL', TERMS), redis.call('HGETALL', PEERS)}
end

local function accepted(store, verified)
  return {'ok', verified, store.committed, store.fence, store.tail_epoch, store.tail_offset, store.incarnation}
end

-- Why this store may neither vote nor hold anything, or nil.
local function unfit(store)
  if store.incarnation == '' then return 'not_admitted' end
  if store.amnesiac then return 'amnesiac' end
end

-- The newest started epoch: the tail's own. nil in an empty journal.
local function newest_term(store)
  if store.tail_offset == 0 then return nil end
  local value = redis.call('HGET', TERMS, text(store.tail_epoch))
  if not value then stop('broken: no term for the tail') end
  local term = cmsgpack.unpack(string.sub(value, string.find(value, '|', 1, true) + 1))
  return {epoch = whole(term[1]), owner = term[3], config_version = whole(term[5]), lineage = term[6]}
end

-- All terms as {epoch, first}, ascending.
local function load_terms()
  local flat, terms = redis.call('HGETALL', TERMS), {}
  for i = 1, #flat, 2 do
    terms[#terms + 1] = {epoch = whole(flat[i]), first = whole(string.match(flat[i + 1], '^(%d+)|'))}
  end
  table.sort(terms, function(a, b) return a.epoch < b.epoch end)
  return terms
end

local function epoch_at(terms, offset)
  for i = #terms, 1, -1 do
    if terms[i].first <= offset then return terms[i].epoch end
  end
  return 0
end

-- What to move where when everything above `keep` goes; only checks.
local function plan_cut(store, terms, keep)
  local plan = {}
  must_be(ORPHANS, 'set')
  for i, term in ipairs(terms) do
    local from = math.max(term.first, keep + 1, store.base + 1)
    local to = terms[i + 1] and terms[i + 1].first - 1 or store.tail_offset
    if from <= to then
      local key = ORPHANS .. ':' .. text(term.epoch)
      must_be(key, 'list')
      plan[#plan + 1] = {key = key, epoch = text(term.epoch), from = from - store.base - 1, to = to - store.base - 1}
    end
  end
  return plan
end

local function cut(store, terms, keep, plan)
  if keep >= store.tail_offset then return end
  for _, part in ipairs(plan) do
    for from = part.from, part.to, CHUNK do
      redis.call('RPUSH', part.key, unpack(redis.call('LRANGE', LOG, from, math.min(from + CHUNK - 1, part.to))))
    end
    redis.call('SADD', ORPHANS, part.epoch)
  end
  if keep <= store.base then
    redis.call('DEL', LOG)
  else
    redis.call('LTRIM', LOG, 0, keep - store.base - 1)
  end
  for _, term in ipairs(terms) do
    if term.first > keep then redis.call('HDEL', TERMS, text(term.epoch)) end
  end
  store.tail_epoch, store.tail_offset = epoch_at(terms, keep), keep
end

-- Only checks, for `extend`.
local function plan_terms(starts)
  if #starts > 0 then must_be(TERMS, 'hash') end
end

-- Append the entries ARGV[1 + first] to ARGV[1 + count] and their terms; `starts` is {index of entry, epoch} of each term.
local function extend(store, first, count, last_epoch, starts)
  if first > count then return end
  for from = first, count, CHUNK do
    redis.call('RPUSH', LOG, unpack(ARGV, 1 + from, 1 + math.min(from + CHUNK - 1, count)))
  end
  for i, start in ipairs(starts) do
    if start[1] >= first then redis.call('HSET', TERMS, text(start[2]), ARGV[1 + count + i]) end
  end
  store.tail_epoch, store.tail_offset = last_epoch, store.tail_offset + count - first + 1
end

-- Only checks. `peers` is {region, fence, verified, amnesiac} each; the answer is for HSET.
local function plan_peers(peers, own)
  local changed, regions = {}, {}
  if #peers == 0 then return changed end
  for i, peer in ipairs(peers) do regions[i] = peer[1] end
  local held = redis.call('HMGET', PEERS, unpack(regions))
  for i, peer in ipairs(peers) do
    local region, fence, verified, old, newer = peer[1], whole(peer[2]), whole(peer[3]), held[i], true
    if region == '' or region ~= own then
      if old then
        local old_fence, old_verified = string.match(old, '^(%d+)|(%d+)|')
        old_fence, old_verified = whole(old_fence), whole(old_verified)
        newer = fence > old_fence or (fence == old_fence and verified > old_verified)
        -- A mark at the same point stays: a message sent before it was set must not take it away.
        newer = newer or (peer[4] and fence == old_fence and verified == old_verified)
      end
      local value = text(fence) .. '|' .. text(verified) .. '|' .. (peer[4] and '1' or '0')
      if newer and value ~= old then
        changed[#changed + 1] = region
        changed[#changed + 1] = value
      end
    end
  end
  return changed
end

local function write_peers(changed)
  if #changed > 0 then redis.call('HSET', PEERS, unpack(changed)) end
end

-- Whether more was heard of this store than it holds: then it has lost data.
local function below(store, fence, verified)
  return store.fence < fence or (store.fence == fence and store.tail_offset < verified)
end

-- Remember it, and refuse.
local function lost_data()
  redis.call('HSET', META, 'amnesiac', '1')
  return everything('amnesiac')
end

-- The acceptor that took its role last, and the longest lease promised under the present fence, and those right below it that
-- were granted to the same region: an epoch of another region has waited for all before it.
local function load_lease(store)
  local held = redis.call('HMGET', META, 'acceptor', 'lease_epoch', 'lease_ms')
  local epoch, lease_ms = whole(held[2] or 0), whole(held[3] or 0)
  return held[1] or '', epoch == store.fence and lease_ms or 0
end

local function promise(store, epoch, region, attempt)
  if epoch > store.fence then
    -- Nobody waits before a Seal for the holder's own region, so its last life may still count what it was promised.
    if region ~= '' and region == store.granted_region and redis.call('HGET', META, 'lease_epoch') == text(store.fence) then
      redis.call('HSET', META, 'lease_epoch', text(epoch))
    end
    store.fence, store.granted_region, store.granted_attempt = epoch, region, attempt
  end
end

-- The last write of a step: the fields that changed, so a heartbeat that says nothing new costs no fsync.
-- `channel` hears of `committed` when it moved.
local function write_meta(store, channel, committed_before)
  local values = {store.incarnation, store.amnesiac and '1' or '0', text(store.fence), store.granted_region, store.granted_attempt,
    text(store.base), text(store.committed), text(store.tail_epoch), text(store.tail_offset)}
  local changed = {}
  for i, field in ipairs(FIELDS) do
    if values[i] ~= store.held[i] then
      changed[#changed + 1] = field
      changed[#changed + 1] = values[i]
    end
  end
  if #changed > 0 then redis.call('HSET', META, unpack(changed)) end
  if store.committed ~= committed_before then redis.call('PUBLISH', channel, text(store.committed)) end
end
