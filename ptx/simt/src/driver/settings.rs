//! Settings, from environment variables that this library alone reads: a driver has no other way to be told anything before
//! its first call.

use crate::Mode;

/// What the driver and its devices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// Threads of the host that execute a launch.
    pub threads: usize,
    /// Memory of each device, in bytes.
    pub memory_bytes: u64,
    /// Compute capability of each device.
    pub capabilities: [Option<(u32, u32)>; DEVICES],
    /// The CUDA version that the driver claims: major and minor.
    pub cuda: (u32, u32),
    /// A function of the driver and the code that it always answers, as a broken installation does.
    pub fails: Option<(String, u32)>,
}

/// Devices at most.
pub const DEVICES: usize = 4;

impl Default for Settings {
    /// All checks on one thread; two devices of 4 GiB, one for each set of kernels.
    fn default() -> Settings {
        Settings {
            mode: Mode::Checked,
            threads: 1,
            memory_bytes: 4 << 30,
            capabilities: [Some((8, 9)), Some((8, 0)), None, None],
            cuda: (12, 4),
            fails: None,
        }
    }
}

impl Settings {
    /// The settings of this process.
    pub fn from_environment() -> Result<Settings, String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a driver is configured by variables: nobody can pass it anything"
        )]
        Settings::read(|name| std::env::var(name).ok())
    }

    /// Settings from variables by name; one that is not set keeps its default, one that is wrong is an error.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let wrong = |name: &str, value: &str, want: &str| format!("{name}={value:?}: give {want}");
        if let Some(value) = variable("LEEWAY_SIMT_MODE") {
            let want = "fast, checked, perturbed:SEED or pessimistic";
            settings.mode = mode(&value).ok_or_else(|| wrong("LEEWAY_SIMT_MODE", &value, want))?;
        }
        if let Some(value) = variable("LEEWAY_SIMT_THREADS") {
            let threads = value.parse().ok().filter(|threads| (1..=1024).contains(threads));
            settings.threads = threads.ok_or_else(|| wrong("LEEWAY_SIMT_THREADS", &value, "1 to 1024"))?;
        }
        if let Some(value) = variable("LEEWAY_SIMT_MEMORY") {
            let bytes = value.parse().ok().filter(|bytes| (1..=1 << 40).contains(bytes));
            settings.memory_bytes = bytes.ok_or_else(|| wrong("LEEWAY_SIMT_MEMORY", &value, "bytes, 1 to 2^40"))?;
        }
        if let Some(value) = variable("LEEWAY_SIMT_CAPABILITY") {
            let want = "compute capabilities, as in 8.9 or 8.9,8.0; at most 4, none for no device";
            settings.capabilities =
                capabilities(&value).ok_or_else(|| wrong("LEEWAY_SIMT_CAPABILITY", &value, want))?;
        }
        if let Some(value) = variable("LEEWAY_SIMT_CUDA") {
            settings.cuda =
                version(&value).ok_or_else(|| wrong("LEEWAY_SIMT_CUDA", &value, "a version, as in 12.4"))?;
        }
        if let Some(value) = variable("LEEWAY_SIMT_FAILS") {
            let want = "a function and its answer, as in cuInit:803";
            settings.fails = Some(failure(&value).ok_or_else(|| wrong("LEEWAY_SIMT_FAILS", &value, want))?);
        }
        Ok(settings)
    }
}

fn mode(value: &str) -> Option<Mode> {
    match value {
        "fast" => Some(Mode::Fast),
        "checked" => Some(Mode::Checked),
        "pessimistic" => Some(Mode::Pessimistic),
        _ => value.strip_prefix("perturbed:")?.parse().ok().map(Mode::Perturbed),
    }
}

fn capabilities(value: &str) -> Option<[Option<(u32, u32)>; DEVICES]> {
    let mut all = [None; DEVICES];
    if value.is_empty() || value == "none" {
        return Some(all);
    }
    for (i, one) in value.split(',').enumerate() {
        *all.get_mut(i)? = Some(version(one.trim())?);
    }
    Some(all)
}

fn failure(value: &str) -> Option<(String, u32)> {
    let (function, code) = value.split_once(':')?;
    Some((function.to_string(), code.parse().ok().filter(|code| *code != 0)?))
}

fn version(value: &str) -> Option<(u32, u32)> {
    let (major, minor) = value.split_once('.')?;
    Some((major.parse().ok().filter(|n| *n < 100)?, minor.parse().ok().filter(|n| *n < 10)?))
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::Mode;

    #[test]
    fn variables_are_read_or_refused_by_name() {
        let one =
            |name: &'static str, value: &'static str| Settings::read(move |n| (n == name).then(|| value.to_string()));
        assert_eq!(Settings::read(|_| None), Ok(Settings::default()));
        assert_eq!(one("LEEWAY_SIMT_MODE", "perturbed:7").unwrap().mode, Mode::Perturbed(7));
        assert_eq!(one("LEEWAY_SIMT_THREADS", "2").unwrap().threads, 2);
        assert_eq!(one("LEEWAY_SIMT_MEMORY", "65536").unwrap().memory_bytes, 65536);
        let devices = one("LEEWAY_SIMT_CAPABILITY", "9.0, 8.6").unwrap().capabilities;
        assert_eq!(devices, [Some((9, 0)), Some((8, 6)), None, None]);
        assert_eq!(one("LEEWAY_SIMT_CAPABILITY", "").unwrap().capabilities, [None; 4]);
        assert_eq!(one("LEEWAY_SIMT_CUDA", "12.0").unwrap().cuda, (12, 0));
        assert_eq!(one("LEEWAY_SIMT_FAILS", "cuInit:803").unwrap().fails, Some(("cuInit".to_string(), 803)));
        let refused = [
            ("LEEWAY_SIMT_MODE", "slow"),
            ("LEEWAY_SIMT_MODE", "perturbed:"),
            ("LEEWAY_SIMT_THREADS", "0"),
            ("LEEWAY_SIMT_MEMORY", "4 GiB"),
            ("LEEWAY_SIMT_CAPABILITY", "8.9,8.9,8.9,8.9,8.9"),
            ("LEEWAY_SIMT_CUDA", "12"),
            ("LEEWAY_SIMT_FAILS", "cuInit:0"),
        ];
        for (name, value) in refused {
            let error = one(name, value).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value:?}: give ")), "{error}");
        }
    }
}
