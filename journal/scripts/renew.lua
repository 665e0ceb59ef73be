-- Whether an authority may have a lease here. The promise itself is the acceptor's, in memory, by a clock that no script has.
local epoch, attempt, acceptor, lease_ms = unpack(cmsgpack.unpack(ARGV[1]))
epoch, lease_ms = whole(epoch), whole(lease_ms)
local store = load_store()
local reason = unfit(store)
if reason then return everything(reason) end
if epoch ~= store.fence or attempt ~= store.granted_attempt then return everything('fenced') end
local held = redis.call('HMGET', META, 'acceptor', 'lease_ms')
if acceptor ~= (held[1] or '') then return everything('superseded') end
if lease_ms > whole(held[2] or 0) then redis.call('HSET', META, 'lease_ms', text(lease_ms)) end
return everything('ok')
