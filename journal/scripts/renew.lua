-- Whether an authority may have a lease here. The promise itself is the acceptor's, in memory, by a clock that no script has.
local epoch, attempt, acceptor, lease_ms = unpack(cmsgpack.unpack(ARGV[1]))
epoch, lease_ms = whole(epoch), whole(lease_ms)
local store = load_store()
local reason = unfit(store)
if reason then return everything(reason) end
if epoch ~= store.fence or attempt ~= store.granted_attempt then return everything('fenced') end
local held, longest = load_lease(store)
if acceptor ~= held then return everything('superseded') end
if lease_ms > longest then redis.call('HSET', META, 'lease_epoch', text(epoch), 'lease_ms', text(lease_ms)) end
return everything('ok')
