"""The consumer of a ring (docs/bridge-format.md): a line of JSON for each block. Usage: python3 read_ring.py RING"""
import fcntl, functools, json, os, platform, struct, sys, time
import numpy as np
assert platform.machine() in ("x86_64", "AMD64"), "elsewhere plain loads and stores need not keep their order"
TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    TABLE = np.where(TABLE & 1, TABLE >> 1 ^ 0x82F63B78, TABLE >> 1)
def crc32c(data, table=TABLE.tolist()):
    step = lambda crc, byte: table[(crc ^ byte) & 255] ^ crc >> 8
    return functools.reduce(step, data.tobytes(), 0xFFFFFFFF) ^ 0xFFFFFFFF

def block(slot, number):
    """The block of a slot as a dictionary; None where its checksums or its number are wrong."""
    at, magic, epoch, kind, dtype, flags, rows, width, stride, uid, position, _, teacher, _, _, heat, _, size, crc \
        = struct.unpack("=QIIBBHIIIQQQQIIfIQI", slot[8:100].tobytes())
    sound = crc32c(slot[8:124]) == slot[124:128].view(np.uint32)[0] and (at, magic) == (number, 0x4B4C424C)
    if not sound or crc32c(slot[128:128 + size]) != crc:
        return None
    end = 128
    def array(of, *shape):
        nonlocal end
        start = (end + 63) // 64 * 64
        end = start + int(np.prod(shape)) * np.dtype(of).itemsize
        return slot[start:end].view(of).reshape(shape)
    said = dict(number=number, kind=["hidden", "logits", "top-k", "sampled"][kind - 1], epoch=epoch, uid=uid,
                position=position, teacher=teacher, temperature=heat, missing=bool(flags & 4),
                tokens=array(np.uint32, rows), logprobs=array(np.float32, rows),
                lse=array(np.float32, rows * (flags & 1)), mask=array(np.uint8, rows), versions=array(np.uint32, rows))
    if not flags & 4 and kind <= 2:
        data = np.ascontiguousarray(array(np.uint8, rows, stride)[:, :width * (2 if dtype == 1 else 4)])
        said["scores"] = (data.view(np.uint16).astype(np.uint32) << 16 if dtype == 1 else data).view(np.float32)
    elif not flags & 4:
        said.update({"ids": array(np.uint32, rows, width)} if kind == 3 else {})
        said.update(scores=array(np.float32, rows, width), tail=array(np.float32, rows * (flags >> 1 & 1)))
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in said.items()}

ring = np.memmap(sys.argv[1], np.uint8, "r+")
u32, u64 = ring.view(np.uint32), ring.view(np.uint64)  # an element is read and written as a whole
assert ring[:8].tobytes() == b"LEEWRING" and list(u32[2:4]) == [1, 0x01020304] and crc32c(ring[:60]) == u32[15]
count, size, lock = int(u32[5]), int(u64[3]), open(sys.argv[1] + ".consumer", "a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the role, until this process ends
words = u64[512::size // 8][:count]
words[words & 3 == 3] -= 1  # IN_USE of a dead consumer is READY again
number, u64[16], u32[34], u32[35], u32[36] = int(words.min()) >> 2, time.monotonic_ns(), u32[34] + 1, os.getpid(), 1
while True:
    u64[16], finished, word = time.monotonic_ns(), u32[20] == 3, int(words[number % count])
    if word == 4 * number + 2:
        words[number % count] = word + 1  # READY to IN_USE
        said = block(ring[4096 + number % count * size:][:size], number)
        u64[22] += said is None
        print(json.dumps(said or dict(number=number, corrupt=True)), flush=True)
        words[number % count] = 4 * (number + count)  # FREE for the next round: acknowledged
        u32[64], u64[19], number = u32[64] + 1, u64[19] + 1, number + 1
    elif word >> 2 > number:
        number += 1  # acknowledged by an earlier consumer
    elif finished:
        break
    else:
        time.sleep(0.0005)
u32[36] = 2
