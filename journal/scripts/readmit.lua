-- Begin anew under a new token. With the present token, a call that is repeated, only the fence may rise.
local channel, incarnation, fence, only, replaces = unpack(cmsgpack.unpack(ARGV[1]))
fence = whole(fence)
local store = load_store()
local before = store.committed
local terms, plan = {}, {}
local anew = incarnation ~= store.incarnation
if only and anew and (store.incarnation ~= replaces or store.fence > fence) then return everything('ok') end
if anew then
  terms = load_terms()
  plan = plan_cut(store, terms, 0)
end

if anew then
  cut(store, terms, 0, plan)
  store.incarnation, store.amnesiac, store.base, store.committed = incarnation, false, 0, 0
  -- What was sent to the store as it was must not be taken by the new one.
  store.granted_region, store.granted_attempt = '', ''
end
promise(store, fence, '', '')
write_meta(store, channel, before)
return everything('ok')
