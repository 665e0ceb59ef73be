-- The authority's own append: never cuts.
local channel, own, epoch, attempt, expected_epoch, expected_offset, committed, follows, last_epoch, heads, starts, peers =
  unpack(cmsgpack.unpack(ARGV[1]))
local count = #heads
epoch, committed, last_epoch = whole(epoch), whole(committed), whole(last_epoch)
expected_epoch, expected_offset = whole(expected_epoch), whole(expected_offset)
whole(expected_offset + count)
local store = load_store()
local changed = plan_peers(peers, own)
plan_terms(starts)

local reason = unfit(store)
if reason then return everything(reason) end
if epoch ~= store.fence or attempt ~= store.granted_attempt then return everything('fenced') end

-- Whether these very entries (digest, epoch, offset, batch id) end the log already: an append that is tried again.
local function repeated()
  if count == 0 or expected_offset + count ~= store.tail_offset then return false end
  if epoch_at(load_terms(), expected_offset) ~= expected_epoch then return false end
  local held = redis.call('LRANGE', LOG, -count, -1)
  if #held ~= count then return false end
  for i = 1, count do
    if string.sub(held[i], 1, heads[i]) ~= string.sub(ARGV[1 + i], 1, heads[i]) then return false end
  end
  return true
end

local fresh = expected_epoch == store.tail_epoch and expected_offset == store.tail_offset
if fresh then
  if not follows then return everything('diverged') end
elseif not repeated() then
  return everything('mismatch')
end

if fresh then extend(store, 1, count, last_epoch, starts) end
write_peers(changed)
local before = store.committed
store.committed = math.max(before, math.min(committed, store.tail_offset))
write_meta(store, channel, before)
return accepted(store, store.tail_offset)
