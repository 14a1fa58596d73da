//! What the system says of the machine and of this process.

use ptx::Cpu;

/// The processor's name as the system gives it, if it does.
#[must_use]
pub fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// A short name of machines like this one, for folders: maker and family of the processor, and the instruction set in use,
/// such as `amd-epyc-avx2`.
#[must_use]
pub fn machine_name(cpu: &Cpu) -> String {
    let name = cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{}-{}", family(&name), cpu.isa().name())
}

/// The first two words of a processor's name, without marks.
fn family(name: &str) -> String {
    let plain = name.replace("(R)", " ").replace("(TM)", " ").to_lowercase();
    let words = plain.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.take(2).collect::<Vec<_>>().join("-")
}

/// Bytes of this process that are in memory now, where the system tells.
#[must_use]
pub fn resident_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::family;

    #[test]
    fn families_of_processors() {
        for (name, want) in [
            ("AMD EPYC", "amd-epyc"),
            ("AMD EPYC 7763 64-Core Processor", "amd-epyc"),
            ("Intel(R) Xeon(R) Platinum 8488C", "intel-xeon"),
            ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "intel-core"),
            ("aarch64", "aarch64"),
        ] {
            assert_eq!(family(name), want);
        }
    }
}
