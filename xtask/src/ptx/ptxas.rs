//! ptxas, which says whether PTX assembles for a card and what it takes of one: the version, how to get it, what it prints.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The package and version whose figures stand in `docs/kernels.md`.
const PACKAGE: &str = "nvidia-cuda-nvcc";
/// Its version.
pub const VERSION: &str = "13.0.88";

/// Architectures that files are assembled for, where this ptxas knows them.
pub const ARCHS: [u32; 5] = [80, 89, 90, 100, 120];

/// A ptxas to run.
pub struct Ptxas {
    path: PathBuf,
    /// Its whole version, such as 13.0.88.
    pub version: String,
    /// Those of [`ARCHS`] that it knows.
    pub archs: Vec<u32>,
    cache: PathBuf,
}

/// What one entry takes on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The entry.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Bytes of stack and of spills, stores and loads together; must be 0.
    pub local_bytes: u32,
}

/// The one that `named` says, or the one of a Python package under `target/`, brought there when it is missing.
pub fn find(root: &Path, named: Option<&Path>) -> Result<Ptxas, String> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => packaged(root)?,
    };
    let version = said(&path, "--version")?;
    let version = version_in(&version).ok_or_else(|| format!("  {}: no version in {version:?}", path.display()))?;
    let help = said(&path, "--help")?;
    let archs = ARCHS.into_iter().filter(|arch| help.contains(&format!("'sm_{arch}'"))).collect();
    Ok(Ptxas { version: version.to_owned(), archs, cache: root.join("target/ptxas-figures"), path })
}

fn said(path: &Path, word: &str) -> Result<String, String> {
    let done = Command::new(path).arg(word).output().map_err(|error| format!("  {}: {error}", path.display()))?;
    if !done.status.success() {
        return Err(format!("  {} {word}: {}", path.display(), done.status));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// `13.0.88` of `Cuda compilation tools, release 13.0, V13.0.88`.
fn version_in(text: &str) -> Option<&str> {
    text.split_once(", V")?.1.split_whitespace().next()
}

/// ptxas of the package in a virtual environment of its own.
fn packaged(root: &Path) -> Result<PathBuf, String> {
    let home = root.join(format!("target/ptxas-{VERSION}"));
    if let Some(path) = in_environment(&home) {
        return Ok(path);
    }
    let advice = format!(
        "  ptxas comes from the Python package {PACKAGE} {VERSION}, which needs python3 with venv (apt-get install \
         python3-venv) and the network once.\n  Elsewhere: cargo xtask ptx --ptxas PATH"
    );
    let run = |program: &Path, words: &[&str]| {
        let line = format!("  {} {}", program.display(), words.join(" "));
        match Command::new(program).args(words).current_dir(root).output() {
            Ok(done) if done.status.success() => Ok(()),
            Ok(done) => {
                let why = [done.stdout, done.stderr].concat();
                Err(format!("{line}: {}\n{}\n{advice}", done.status, String::from_utf8_lossy(&why).trim_end()))
            }
            Err(error) => Err(format!("{line}: {error}\n{advice}")),
        }
    };
    let folder = home.to_string_lossy().into_owned();
    run(Path::new("python3"), &["-m", "venv", "--clear", &folder])?;
    // ptxas alone is wanted, and it needs none of what the compiler in its package needs.
    let package = format!("{PACKAGE}=={VERSION}");
    run(&home.join("bin/python"), &["-m", "pip", "install", "--quiet", "--no-deps", "--no-input", &package])?;
    in_environment(&home).ok_or_else(|| format!("  {PACKAGE} {VERSION} brought no ptxas\n{advice}"))
}

/// `lib/python3.N/site-packages/nvidia/cu13/bin/ptxas`.
fn in_environment(home: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(home.join("lib")).ok()?;
    let places = pythons.flatten().map(|entry| entry.path().join("site-packages/nvidia/cu13/bin/ptxas"));
    places.into_iter().find(|path| path.is_file())
}

impl Ptxas {
    /// True for the version whose figures are committed.
    pub fn is_pinned(&self) -> bool {
        self.version == VERSION
    }

    /// Assembles one text and says what its entries take. Figures of texts seen before are kept under `target/`.
    pub fn assemble(&self, name: &str, file: &Path, ptx: &str, arch: u32) -> Result<Vec<Usage>, String> {
        let key = blake3::hash(format!("{} {arch}\n{ptx}", self.version).as_bytes()).to_hex();
        let kept = self.cache.join(key.as_str());
        let text = match std::fs::read_to_string(&kept) {
            Ok(text) => text,
            Err(_) => {
                let text = self.run(name, file, arch)?;
                // Without the folder the next run only assembles again.
                let _ = std::fs::create_dir_all(&self.cache).and_then(|()| std::fs::write(&kept, &text));
                text
            }
        };
        let used = parse(&text).ok_or_else(|| format!("  {name} for sm_{arch}: ptxas said\n{text}"))?;
        let local: Vec<String> = used
            .iter()
            .filter(|usage| usage.local_bytes > 0)
            .map(|usage| {
                format!("  {name} for sm_{arch}: {} spills or has a stack, {} bytes", usage.entry, usage.local_bytes)
            })
            .collect();
        if !local.is_empty() {
            return Err(local.join("\n"));
        }
        Ok(used)
    }

    fn run(&self, name: &str, file: &Path, arch: u32) -> Result<String, String> {
        let done = Command::new(&self.path)
            .args(["-v", &format!("-arch=sm_{arch}"), "-o", "/dev/null"])
            .arg(file)
            .output()
            .map_err(|error| format!("  {}: {error}", self.path.display()))?;
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        if done.status.success() && !text.contains("warning") {
            return Ok(text);
        }
        Err(format!("  {name} for sm_{arch}: ptxas {}\n{}", done.status, text.trim_end()))
    }
}

/// Reads what `ptxas -v` prints: for each entry its name, a line of stack and spills, a line of registers.
fn parse(text: &str) -> Option<Vec<Usage>> {
    let mut found: Vec<Usage> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            found.push(Usage { entry: rest.split('\'').next()?.to_owned(), ..Usage::default() });
        } else if line.contains("bytes stack frame") || line.contains("bytes lmem") {
            let parts = line.split(',').filter(|part| part.contains("bytes"));
            let bytes: Option<u32> =
                parts.filter(|part| !part.contains("smem") && !part.contains("cmem")).map(number).sum();
            found.last_mut()?.local_bytes += bytes?;
        }
        if let Some((_, rest)) = line.split_once(" Used ") {
            let usage = found.last_mut()?;
            usage.registers = number(rest)?;
            let shared = rest.split(',').find(|part| part.contains("bytes smem"));
            usage.shared_bytes = shared.map_or(Some(0), number)?;
        }
    }
    found.iter().all(|usage| usage.registers > 0).then_some(found)
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 't_two' for 'sm_90'
ptxas info    : Function properties for t_two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 512 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 35.144 ms
ptxas info    : Compiling entry function 't_f32' for 'sm_90'
ptxas info    : Function properties for t_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers
";

    #[test]
    fn figures_are_read_and_stack_and_spills_count() {
        let used = parse(SAID).expect("two entries");
        assert_eq!(used[0], Usage { entry: "t_two".into(), registers: 12, shared_bytes: 512, local_bytes: 0 });
        assert_eq!(used[1], Usage { entry: "t_f32".into(), registers: 31, shared_bytes: 0, local_bytes: 0 });
        for (from, to, bytes) in
            [("0 bytes stack", "16 bytes stack", 16), ("0 bytes spill loads", "8 bytes spill loads", 8)]
        {
            let used = parse(&SAID.replacen(from, to, 1)).expect("two entries");
            assert_eq!((used[0].local_bytes, used[1].local_bytes), (bytes, 0), "{to}");
        }
        assert_eq!(parse(&SAID.replace("Used 31", "Used many")), None);
    }

    #[test]
    fn the_version_is_read() {
        assert_eq!(version_in("Cuda compilation tools, release 13.0, V13.0.88\nBuild x"), Some("13.0.88"));
    }
}
