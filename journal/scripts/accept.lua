-- The receiver's side of Append.
local channel, own, lineage, config_version, sender, epoch, attempt, prev_epoch, prev_offset, committed, follows, epochs, starts, peers =
  unpack(cmsgpack.unpack(ARGV[1]))
local count = #epochs
epoch, committed, config_version = whole(epoch), whole(committed), whole(config_version)
prev_epoch, prev_offset = whole(prev_epoch), whole(prev_offset)
local verified = whole(prev_offset + count)
for i = 1, count do epochs[i] = whole(epochs[i]) end
local store = load_store()
local changed = plan_peers(peers, own)
plan_terms(starts)

local reason = unfit(store)
if reason then return everything(reason) end
local newest = newest_term(store)
if newest and lineage ~= newest.lineage then return everything('lineage') end
if epoch < store.fence or (epoch == store.fence and attempt ~= store.granted_attempt) then return everything('fenced') end
if newest and config_version < newest.config_version then return everything('stale_config') end
for _, peer in ipairs(peers) do
  if peer[1] == own and below(store, whole(peer[2]), whole(peer[3])) then return lost_data() end
end

local terms = nil
local matches = false
if prev_offset == store.tail_offset then
  matches = prev_epoch == store.tail_epoch
elseif prev_offset < store.tail_offset then
  terms = load_terms()
  matches = prev_epoch == epoch_at(terms, prev_offset)
end
if not matches then
  promise(store, epoch, sender, attempt)
  write_meta(store, channel, store.committed)
  return everything('mismatch')
end
if not follows then return everything('diverged') end

-- Walk over what both hold. Entries at or below `base` are gone, and committed: their epoch alone decides.
local skip = 0
for i = 1, math.min(count, store.tail_offset - prev_offset) do
  local offset = prev_offset + i
  if epoch_at(terms, offset) ~= epochs[i] then break end
  if offset > store.base then
    local held = redis.call('LINDEX', LOG, offset - store.tail_offset - 1)
    if string.sub(held, 1, DIGEST_LENGTH) ~= string.sub(ARGV[1 + i], 1, DIGEST_LENGTH) then return everything('diverged') end
  end
  skip = i
end
local keep = prev_offset + skip
local plan = nil
if skip < count and keep < store.tail_offset then
  if keep < store.committed then return everything('diverged') end
  plan = plan_cut(store, terms, keep)
end

if plan then cut(store, terms, keep, plan) end
extend(store, skip + 1, count, epochs[count], starts)
write_peers(changed)
promise(store, epoch, sender, attempt)
for _, peer in ipairs(peers) do
  if peer[1] == own and peer[4] then store.amnesiac = true end
end
local before = store.committed
store.committed = math.max(before, math.min(committed, verified))
write_meta(store, channel, before)
return accepted(store, verified)
