//! What the launches of a context did, added up since they were last set to 0.

use crate::{ALL_CLASSES, AllocationTraffic, Stats, Traffic};
use std::collections::BTreeMap;

/// Sums over launches.
pub struct Counters {
    launches: u64,
    /// FNV-1a of all bytes that the host copied from the device, in the order of the copies.
    read: u64,
    /// All but the allocations, which are below.
    sum: Stats,
    /// Loads and stores by address.
    allocations: BTreeMap<u64, [Traffic; 2]>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { launches: 0, read: 0xcbf2_9ce4_8422_2325, sum: Stats::default(), allocations: BTreeMap::new() }
    }
}

impl Counters {
    /// Takes what a copy brought to the host.
    pub fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.read = (self.read ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn add(&mut self, stats: &Stats) {
        self.launches += 1;
        for (to, from) in self.sum.instructions.iter_mut().zip(&stats.instructions) {
            to.warp += from.warp;
            to.lane += from.lane;
        }
        self.sum.lane_instructions += stats.lane_instructions;
        self.sum.warp_instructions += stats.warp_instructions;
        self.sum.shared_accesses += stats.shared_accesses;
        self.sum.shared_wavefronts += stats.shared_wavefronts;
        self.sum.shared_wavefronts_least += stats.shared_wavefronts_least;
        self.sum.mma_flops += stats.mma_flops;
        self.sum.barriers += stats.barriers;
        self.sum.divergent_branches += stats.divergent_branches;
        add(&mut self.sum.load, &stats.load);
        add(&mut self.sum.store, &stats.store);
        for AllocationTraffic { address, load, store, .. } in &stats.allocations {
            let [loads, stores] = self.allocations.entry(*address).or_default();
            add(loads, load);
            add(stores, store);
        }
    }

    /// One line for each counter: its name, a space, its value. Traffic of one allocation begins with its address.
    pub fn text(&self) -> String {
        let sum = &self.sum;
        let mut lines = vec![
            format!("launches {}", self.launches),
            format!("digest of reads {}", self.read),
            format!("lane instructions {}", sum.lane_instructions),
            format!("warp instructions {}", sum.warp_instructions),
            format!("shared accesses {}", sum.shared_accesses),
            format!("shared wavefronts {}", sum.shared_wavefronts),
            format!("shared wavefronts least {}", sum.shared_wavefronts_least),
            format!("mma flops {}", sum.mma_flops),
            format!("barriers {}", sum.barriers),
            format!("divergent branches {}", sum.divergent_branches),
        ];
        for class in ALL_CLASSES {
            let (name, issued) = (format!("{class:?}").to_lowercase(), sum.issued(class));
            lines.push(format!("{name} warp instructions {}", issued.warp));
            lines.push(format!("{name} lane instructions {}", issued.lane));
        }
        lines.extend(traffic("load", &sum.load));
        lines.extend(traffic("store", &sum.store));
        for (address, [load, store]) in &self.allocations {
            lines.extend(traffic(&format!("{address:#x} load"), load));
            lines.extend(traffic(&format!("{address:#x} store"), store));
        }
        lines.join("\n")
    }
}

fn add(to: &mut Traffic, from: &Traffic) {
    to.bytes += from.bytes;
    to.sectors += from.sectors;
    to.unique_sectors += from.unique_sectors;
}

fn traffic(what: &str, traffic: &Traffic) -> [String; 3] {
    [
        format!("{what} bytes {}", traffic.bytes),
        format!("{what} sectors {}", traffic.sectors),
        format!("{what} unique sectors {}", traffic.unique_sectors),
    ]
}
