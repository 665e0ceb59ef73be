-- Remember that this store has lost data, unless it was begun anew meanwhile.
local incarnation = unpack(cmsgpack.unpack(ARGV[1]))
local store = load_store()
if store.incarnation == incarnation then redis.call('HSET', META, 'amnesiac', '1') end
return everything('ok')
