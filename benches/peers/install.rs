//! Brings the peers: each into a folder of its own, from PyPI, in the versions of `requirements/`, when it is missing.
//!
//! A folder is finished when its stamp holds exactly what it was made from; so a changed version, flag or driver makes it
//! anew, and an installation that was broken off goes on. Everything runs at low priority, and what the tools say goes to
//! `install.log`.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// Where a peer's program is and what it was made of.
pub struct Llama {
    /// The driver, linked with llama.cpp.
    pub driver: PathBuf,
    /// A Python that has `gguf`.
    pub python: PathBuf,
}

const LLAMA: &str = include_str!("requirements/llama.txt");
const SDIST: &str = include_str!("requirements/sdist.txt");
const JAX: &str = include_str!("requirements/jax.txt");
const TORCH: &str = include_str!("requirements/torch.txt");
const DRIVER: &str = include_str!("llama_infer.cpp");

/// How llama.cpp is built: for this very machine, OpenMP is its default, and nothing but the library.
pub const CMAKE_FLAGS: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_OPENMP=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
];
/// How the driver is compiled; the work is llama.cpp's, not its own.
const DRIVER_FLAGS: [&str; 4] = ["-O2", "-std=c++17", "-Wall", "-fopenmp"];
/// What the driver links, in the linker's order, below the folder of the build.
const LIBRARIES: [&str; 4] =
    ["src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a"];
/// Seconds from 1970 to some time long before any build: sources newer than the build confuse make.
const LONG_AGO_S: u64 = 1_577_836_800;

/// The folder that the peers are installed into.
pub struct Environment {
    root: PathBuf,
}

impl Environment {
    /// A folder, made when it is not there.
    pub fn open(root: &Path) -> Result<Environment, String> {
        fs::create_dir_all(root).map_err(|e| format!("{}: {e}", root.display()))?;
        let root = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
        Ok(Environment { root })
    }

    /// A folder below for something that is kept.
    pub fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// A Python that has JAX.
    pub fn jax(&self) -> Result<PathBuf, String> {
        self.python("JAX (0.6 GB)", &self.folder("jax")?, JAX)
    }

    /// A Python that has PyTorch and transformers.
    pub fn torch(&self) -> Result<PathBuf, String> {
        self.python("PyTorch and transformers (5.6 GB)", &self.folder("torch")?, TORCH)
    }

    /// llama.cpp: a Python with cmake, the sources, the library, and the driver linked with it.
    pub fn llama(&self) -> Result<Llama, String> {
        let home = self.folder("llama")?;
        let python = self.python("cmake and gguf", &home.join("python"), LLAMA)?;
        let sources = self.sources(&home, &python)?;
        let build = self.library(&home, &sources)?;
        let driver = home.join("llama_infer");
        let stamp = Stamp::new(&home, "driver", &format!("{DRIVER}{}{}", DRIVER_FLAGS.join(" "), self.recipe()));
        if !stamp.holds() || !driver.exists() {
            say("compiling the driver of llama.cpp");
            let code = home.join("llama_infer.cpp");
            fs::write(&code, DRIVER).map_err(|e| format!("{}: {e}", code.display()))?;
            let mut command = quiet("c++");
            command.args(DRIVER_FLAGS).arg("-I").arg(sources.join("include"));
            command.arg("-I").arg(sources.join("ggml/include")).arg(&code).arg("-o").arg(&driver);
            command.args(LIBRARIES.map(|name| build.join(name))).args(["-lpthread", "-ldl", "-lm"]);
            self.run("llama.cpp's driver cannot be compiled", &mut command)?;
            stamp.put()?;
        }
        Ok(Llama { driver, python })
    }

    /// A virtual environment with these requirements.
    fn python(&self, what: &str, home: &Path, requirements: &str) -> Result<PathBuf, String> {
        let python = home.join("bin/python");
        let stamp = Stamp::new(home, "requirements", requirements);
        if stamp.holds() && python.exists() {
            return Ok(python);
        }
        say(&format!("installing {what} into {}", home.display()));
        if !python.exists() {
            let mut command = quiet("python3");
            command.args(["-m", "venv"]).arg(home);
            self.run("python3 with venv is needed (Debian's python3-venv)", &mut command)?;
        }
        let list = home.join("requirements.txt");
        fs::write(&list, requirements).map_err(|e| format!("{}: {e}", list.display()))?;
        let mut command = quiet(&python);
        command.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-r"]).arg(&list);
        self.run(&format!("{what} cannot be had from PyPI"), &mut command)?;
        stamp.put()?;
        Ok(python)
    }

    /// The folder of llama.cpp's sources, unpacked from the source package of llama-cpp-python.
    fn sources(&self, home: &Path, python: &Path) -> Result<PathBuf, String> {
        let version = pin(SDIST, "llama-cpp-python")?;
        let name = format!("llama_cpp_python-{version}");
        let (archive, unpacked) = (home.join(format!("{name}.tar.gz")), home.join(&name));
        let stamp = Stamp::new(home, "sources", version);
        let sources = unpacked.join("vendor/llama.cpp");
        if stamp.holds() && sources.exists() {
            return Ok(sources);
        }
        if !archive.exists() {
            say(&format!("downloading the sources of llama-cpp-python {version} (77 MB)"));
            let mut command = quiet(python);
            command.args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps"]);
            command.args(["--no-binary", "llama-cpp-python", "--dest"]).arg(home);
            command.arg(format!("llama-cpp-python=={version}"));
            self.run("the sources of llama-cpp-python cannot be had from PyPI", &mut command)?;
        }
        let mut command = quiet("tar");
        command.arg("xf").arg(&archive).arg("-C").arg(home);
        self.run(&format!("{} cannot be unpacked", archive.display()), &mut command)?;
        age(&unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
        if !sources.join("include/llama.h").exists() {
            return Err(format!("{name} carries no llama.cpp in vendor/: another version needs another way"));
        }
        stamp.put()?;
        Ok(sources)
    }

    /// The folder of llama.cpp's libraries.
    fn library(&self, home: &Path, sources: &Path) -> Result<PathBuf, String> {
        let build = home.join("build");
        let stamp = Stamp::new(home, "library", &self.recipe());
        if stamp.holds() && LIBRARIES.iter().all(|name| build.join(name).exists()) {
            return Ok(build);
        }
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        say(&format!("building llama.cpp with {jobs} jobs; some 8 minutes of processor time"));
        let cmake = home.join("python/bin/cmake");
        let mut command = quiet(&cmake);
        command.arg("-S").arg(sources).arg("-B").arg(&build).args(["-G", "Unix Makefiles"]).args(CMAKE_FLAGS);
        self.run("llama.cpp's build cannot be set up; it needs make and a C++ compiler", &mut command)?;
        let mut command = quiet(&cmake);
        command.arg("--build").arg(&build).args(["--target", "llama"]).arg(format!("-j{jobs}"));
        self.run("llama.cpp does not build", &mut command)?;
        stamp.put()?;
        Ok(build)
    }

    /// What llama.cpp is built from and how.
    fn recipe(&self) -> String {
        format!("{SDIST}{LLAMA}{}", CMAKE_FLAGS.join("\n"))
    }

    /// Runs a command to its end, or says what could not be had and where the tools' words are.
    fn run(&self, failed: &str, command: &mut Command) -> Result<(), String> {
        let path = self.root.join("install.log");
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(|e| format!("{}: {e}", path.display()))?;
        let copy = log.try_clone().map_err(|e| format!("{}: {e}", path.display()))?;
        let ended = match command.stdin(Stdio::null()).stdout(log).stderr(copy).status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut last: Vec<&str> = text.lines().rev().take(8).collect();
        last.reverse();
        Err(format!("{failed}: {ended}; the last words of {}:\n  {}", path.display(), last.join("\n  ")))
    }
}

/// What a folder was made from, kept beside it.
struct Stamp {
    path: PathBuf,
    text: String,
}

impl Stamp {
    fn new(home: &Path, name: &str, text: &str) -> Stamp {
        Stamp { path: home.join(format!("{name}.stamp")), text: text.to_owned() }
    }

    fn holds(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| text == self.text)
    }

    fn put(&self) -> Result<(), String> {
        fs::write(&self.path, &self.text).map_err(|e| format!("{}: {e}", self.path.display()))
    }
}

/// The pinned version of a package.
pub fn pin<'a>(requirements: &'a str, package: &str) -> Result<&'a str, String> {
    let mut pins = requirements.lines().filter_map(|line| line.split_once("=="));
    let pin = pins.find(|(name, _)| *name == package);
    pin.map(|(_, version)| version).ok_or_else(|| format!("no version of {package} in the requirements"))
}

/// A command at low priority.
fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(program);
    command
}

fn say(text: &str) {
    eprintln!("peers: {text}");
}

/// Sets the times of all files below back.
fn age(folder: &Path) -> std::io::Result<()> {
    let old = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(LONG_AGO_S));
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            age(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.set_times(old)?;
        }
    }
    Ok(())
}
