-- Forget what was orphaned from one epoch's offsets `first` to `last`; what is not there is forgotten already.
local epoch, first, last = unpack(cmsgpack.unpack(ARGV[1]))
epoch, first, last = whole(epoch), whole(first), whole(last)
must_be(ORPHANS, 'set')
local key = ORPHANS .. ':' .. text(epoch)
must_be(key, 'list')

-- An element is its digest, the head of an array of at most 15 fields (one byte), then epoch and offset.
local kept, count = {}, redis.call('LLEN', key)
for from = 0, count - 1, CHUNK do
  for _, element in ipairs(redis.call('LRANGE', key, from, from + CHUNK - 1)) do
    local _, _, offset = cmsgpack.unpack_limit(element, 2, DIGEST_LENGTH + 1)
    offset = whole(offset)
    if offset < first or offset > last then kept[#kept + 1] = element end
  end
end
if #kept == count then return {0} end

redis.call('DEL', key)
for from = 1, #kept, CHUNK do
  redis.call('RPUSH', key, unpack(kept, from, math.min(from + CHUNK - 1, #kept)))
end
if #kept == 0 then redis.call('SREM', ORPHANS, text(epoch)) end
return {count - #kept}
