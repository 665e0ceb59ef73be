-- Promise an epoch to one attempt; at genesis also take the token.
local channel, lineage, target, epoch, attempt, from_epoch, from_owner, admit_as, heard_fence, heard_verified, acceptor =
  unpack(cmsgpack.unpack(ARGV[1]))
epoch, from_epoch, heard_fence, heard_verified = whole(epoch), whole(from_epoch), whole(heard_fence), whole(heard_verified)
local store = load_store()

if store.incarnation == '' then
  if admit_as == '' or store.tail_offset > 0 or redis.call('HLEN', TERMS) > 0 then return everything('not_admitted') end
  store.incarnation = admit_as
end
if store.amnesiac then return everything('amnesiac') end
local newest = newest_term(store)
if newest and lineage ~= '' and lineage ~= newest.lineage then return everything('lineage') end
local again = epoch == store.fence and target == store.granted_region and attempt == store.granted_attempt
if epoch <= store.fence and not again then return everything('fenced') end
if newest and (newest.epoch > from_epoch or (newest.epoch == from_epoch and newest.owner ~= from_owner)) then
  return everything('moved')
end
local held, lease_ms = load_lease(store)
if lease_ms > 0 and acceptor ~= held then return everything('superseded') end
if below(store, heard_fence, heard_verified) then return lost_data() end

promise(store, epoch, target, attempt)
write_meta(store, channel, store.committed)
return everything('ok')
