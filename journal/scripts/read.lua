-- Entries from an offset on, as many as fit; nothing when the first is trimmed or not there yet.
local first, limit, max_bytes = unpack(cmsgpack.unpack(ARGV[1]))
local STEP = 16
local store = load_store()
local found, size = {}, 0
if first <= store.base or first > store.tail_offset then return found end
local start = first - store.base - 1
for from = start, start + limit - 1, STEP do
  local part = redis.call('LRANGE', LOG, from, math.min(from + STEP, start + limit) - 1)
  for _, entry in ipairs(part) do
    size = size + #entry
    if #found > 0 and size > max_bytes then return found end
    found[#found + 1] = entry
  end
  if #part < STEP then break end
end
return found
