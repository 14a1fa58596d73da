//! clang, which compiles kernels: the version, the flags, and how to get it.

use std::path::Path;
use std::process::Command;

/// The version whose output is committed.
pub const VERSION: &str = "19.1.7";

/// A target of the committed PTX: the name in the file, and the PTX version that its instructions need.
pub struct Target {
    /// `sm80`, as in `<op>.sm80.ptx`.
    pub name: &'static str,
    /// The compute capability as a number: 80 for 8.0.
    pub arch: u32,
    feature: &'static str,
}

/// Conversions and matrix products of e4m3 exist from 8.9 on, and only from PTX 8.4 on.
pub const TARGETS: [Target; 2] =
    [Target { name: "sm80", arch: 80, feature: "+ptx80" }, Target { name: "sm89", arch: 89, feature: "+ptx84" }];

/// A clang of the right major version.
pub struct Clang {
    program: &'static str,
    /// Its whole version, such as 19.1.7.
    pub version: String,
}

/// Looks for `clang-19`, then for a `clang` that is one.
pub fn find() -> Result<Clang, String> {
    for program in ["clang-19", "clang"] {
        let Ok(done) = Command::new(program).arg("--version").output() else { continue };
        let version = version_in(&String::from_utf8_lossy(&done.stdout)).map(str::to_owned);
        if let Some(version) = version.filter(|version| major(version) == major(VERSION)) {
            return Ok(Clang { program, version });
        }
    }
    Err(format!(
        "  no clang {}: kernels are compiled by clang {VERSION}. On Debian 12: apt-get install clang-19; elsewhere see \
         https://apt.llvm.org\n  Only those who work on leeway need it: to build and use leeway takes neither clang nor ptxas.",
        major(VERSION),
    ))
}

impl Clang {
    /// True for the version whose output is committed, byte for byte.
    pub fn is_pinned(&self) -> bool {
        self.version == VERSION
    }

    /// PTX of one source, named relative to `root`, so that no path of this machine gets into the output.
    pub fn compile(&self, root: &Path, source: &str, target: &Target) -> Result<String, String> {
        let arch = format!("--cuda-gpu-arch=sm_{}", target.arch);
        let done = Command::new(self.program)
            .args(["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", &arch])
            .args(["-Xclang", "-target-feature", "-Xclang", target.feature])
            .args(["-ffp-contract=off", "-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-I", "ptx"])
            .args(["-S", "-o", "-", source])
            .current_dir(root)
            // Folders that these name would be searched for headers.
            .env_remove("CPATH")
            .env_remove("CPLUS_INCLUDE_PATH")
            .output()
            .map_err(|error| format!("  {}: {error}", self.program))?;
        let said = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() {
            return Err(format!("  {source} for {}: {}\n{said}", target.name, done.status));
        }
        String::from_utf8(done.stdout).map_err(|error| format!("  {source} for {}: {error}", target.name))
    }
}

/// A clang that says it has this version; it is never run.
#[cfg(test)]
pub fn tests_only(version: &str) -> Clang {
    Clang { program: "clang-19", version: version.to_owned() }
}

/// `19.1.7` of `Debian clang version 19.1.7 (3~deb12u1)`.
fn version_in(text: &str) -> Option<&str> {
    let rest = text.split_once("clang version ")?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    Some(&rest[..end])
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_distributions_print() {
        for (text, version) in [
            ("Debian clang version 19.1.7 (3~deb12u1)\nTarget: x", Some("19.1.7")),
            ("Ubuntu clang version 19.1.1 (1ubuntu1)", Some("19.1.1")),
            ("clang version 18.1.3", Some("18.1.3")),
            ("Apple LLVM", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
        assert_eq!(major("19.1.7"), "19");
    }
}
