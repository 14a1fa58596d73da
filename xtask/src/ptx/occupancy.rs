//! How many blocks of a kernel a multiprocessor holds at once, from what a thread and a block take.

/// What one multiprocessor has, by compute capability (CUDA C++ Programming Guide, technical specifications).
struct Multiprocessor {
    registers: u32,
    warps: u32,
    blocks: u32,
    shared_bytes: u32,
}

const REGISTER_UNIT: u32 = 256; // registers are given to warps in such pieces
const PARTITIONS: u32 = 4; // each has a quarter of the registers and runs whole warps
const SHARED_UNIT: u32 = 128;
const SHARED_OF_SYSTEM: u32 = 1024; // of every block, from 8.0 on

fn multiprocessor(arch: u32) -> Option<Multiprocessor> {
    let (warps, blocks, shared_kib) = match arch {
        80 => (64, 32, 164),
        89 => (48, 24, 100),
        90 => (64, 32, 228),
        _ => return None,
    };
    Some(Multiprocessor { registers: 65536, warps, blocks, shared_bytes: shared_kib * 1024 })
}

/// Blocks that fit at once, the least of four limits: blocks, warps, registers, shared memory. `None` for an architecture
/// whose limits are not listed.
pub fn blocks(arch: u32, threads: u32, registers: u32, shared_bytes: u32) -> Option<u32> {
    let has = multiprocessor(arch)?;
    let warps = threads.div_ceil(32).max(1);
    let registers_of_warp = (registers * 32).next_multiple_of(REGISTER_UNIT).max(REGISTER_UNIT);
    let warps_by_registers = has.registers / PARTITIONS / registers_of_warp * PARTITIONS;
    let shared_of_block = (shared_bytes + SHARED_OF_SYSTEM).next_multiple_of(SHARED_UNIT);
    let limits = [has.blocks, has.warps / warps, warps_by_registers / warps, has.shared_bytes / shared_of_block];
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_binds_in_turn() {
        for (arch, threads, registers, shared, want) in [
            (80, 32, 16, 0, 32),      // blocks
            (80, 1024, 32, 0, 2),     // warps: 2048 threads
            (89, 1024, 32, 0, 1),     // warps: 1536 threads
            (80, 256, 32, 0, 8),      // warps and registers alike
            (80, 256, 33, 0, 6),      // 33 registers count as 40: 12 warps a partition, 48 in all
            (90, 128, 128, 0, 4),     // 4 warps a partition
            (80, 128, 255, 0, 2),     // 2 warps a partition
            (80, 128, 32, 49152, 3),  // 164 KiB by 49 KiB
            (90, 128, 32, 49152, 4),  // 228 KiB by 49 KiB
            (90, 128, 32, 233472, 0), // more than a block may have
        ] {
            assert_eq!(blocks(arch, threads, registers, shared), Some(want), "{arch} {threads} {registers} {shared}");
        }
        assert_eq!(blocks(100, 32, 16, 0), None);
    }
}
