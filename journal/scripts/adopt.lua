-- The target's own step of an activation: cut above `keep`, then append.
local channel, epoch, attempt, expected_epoch, expected_offset, keep, follows, epochs, starts = unpack(cmsgpack.unpack(ARGV[1]))
local count = #epochs
epoch, keep = whole(epoch), whole(keep)
expected_epoch, expected_offset = whole(expected_epoch), whole(expected_offset)
whole(keep + count)
for i = 1, count do epochs[i] = whole(epochs[i]) end
local store = load_store()
plan_terms(starts)

local reason = unfit(store)
if reason then return everything(reason) end
if epoch ~= store.fence or attempt ~= store.granted_attempt then return everything('fenced') end
if expected_epoch ~= store.tail_epoch or expected_offset ~= store.tail_offset then return everything('mismatch') end
if keep < store.committed or keep > store.tail_offset or not follows then return everything('diverged') end
local terms = load_terms()
if count > 0 then
  -- `follows` speaks of the entries among themselves; the seam is known only here.
  local held = epoch_at(terms, keep)
  local starts_epoch = starts[1] ~= nil and starts[1][1] == 1
  if epochs[1] < held or (epochs[1] == held) == starts_epoch then return everything('diverged') end
end
local plan = plan_cut(store, terms, keep)

cut(store, terms, keep, plan)
extend(store, 1, count, epochs[count], starts)
write_meta(store, channel, store.committed)
return accepted(store, store.tail_offset)
