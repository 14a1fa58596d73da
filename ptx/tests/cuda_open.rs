//! Opening a device through whatever driver the loader finds: none, too old a one, one whose device is too old. Each case
//! is this executable run again with another environment, since a process looks for its driver once.

#![cfg(target_os = "linux")]

use ptx::cuda::{Gpu, simulator};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the cases below run: it opens the first device of the driver that the loader finds and says how that went. A
/// machine without any driver passes it too, since opening must never do worse than return an error.
#[test]
fn opening_says_how_it_went() {
    match Gpu::open(0) {
        Ok(gpu) => println!("result: opened {}\n", gpu.name()),
        Err(error) => println!("result: {error}\n"),
    }
}

/// Likewise through cudarc's own layer, for which this library must look like any driver.
#[test]
fn cudarc_says_how_it_went() {
    // SAFETY: an installed driver's initialisers are safe to run.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        println!("result: no driver\n");
        return;
    }
    let copied = || {
        let context = cudarc::driver::CudaContext::new(0)?;
        let stream = context.new_stream()?;
        let numbers = stream.clone_htod(&[1_u32, 2, 3])?;
        let mut zeros = stream.alloc_zeros::<u32>(5)?;
        stream.memcpy_dtod(&numbers, &mut zeros)?;
        Ok::<_, cudarc::driver::DriverError>((context.name()?, stream.clone_dtoh(&zeros)?))
    };
    println!("result: {:?}\n", copied());
}

/// Runs one of these tests in an environment of these variables alone, and what the loader needs.
fn open_with(test: &str, variables: &[(&str, &str)], libraries: &Path) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env_clear();
    command.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let result = text.lines().find_map(|line| line.split_once("result: ")).map(|(_, result)| result.to_string());
    result.unwrap_or_else(|| panic!("no result in {text}"))
}

/// A folder of this name with the given file under the names that a driver has.
fn folder(name: &str, library: Option<&Path>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        let place = folder.join(file);
        let _ = std::fs::remove_file(&place);
        if let Some(library) = library {
            std::os::unix::fs::symlink(library, place).unwrap();
        }
    }
    folder
}

fn simulated(variables: &[(&str, &str)]) -> String {
    run_simulated("opening_says_how_it_went", variables)
}

fn run_simulated(test: &str, variables: &[(&str, &str)]) -> String {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| folder("simulated", Some(&simulator::driver_path().unwrap())));
    open_with(test, variables, folder)
}

#[test]
fn no_driver() {
    let result = open_with("opening_says_how_it_went", &[], &folder("empty", None));
    // SAFETY: an installed driver's initialisers are safe to run.
    let installed = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    let refused =
        result.starts_with("no CUDA driver: ") && result.ends_with("; install an NVIDIA driver, or use --device cpu");
    assert!(refused || installed, "{result}");
}

#[test]
fn a_file_that_is_no_library() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let result = open_with("opening_says_how_it_went", &[], &folder("no-library", Some(&text)));
    // SAFETY: an installed driver's initialisers are safe to run.
    let installed = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    assert!(result.starts_with("no CUDA driver: ") || installed, "{result}");
}

#[test]
fn the_simulator_as_the_systems_driver() {
    assert_eq!(simulated(&[]), "opened leeway simt (simulated, not a GPU), sm_89");
    let hopper = simulated(&[("LEEWAY_SIMT_CAPABILITY", "9.0")]);
    assert_eq!(hopper, "opened leeway simt (simulated, not a GPU), sm_90");
}

#[test]
fn cudarc_runs_over_the_simulator() {
    let result = run_simulated("cudarc_says_how_it_went", &[]);
    assert_eq!(result, "Ok((\"leeway simt (simulated, not a GPU), sm_89\", [1, 2, 3, 0, 0]))");
}

#[test]
fn a_driver_too_old_for_the_kernels() {
    let result = simulated(&[("LEEWAY_SIMT_CUDA", "11.8")]);
    assert_eq!(
        result,
        "the CUDA driver is for CUDA 11.8 and kernels for sm_80 need 12.0: update the driver, or use --device cpu"
    );
    let result = simulated(&[("LEEWAY_SIMT_CUDA", "12.3")]);
    assert_eq!(
        result,
        "the CUDA driver is for CUDA 12.3 and kernels for sm_89 need 12.4: update the driver, or use --device cpu"
    );
    // The older kernels need no more than the older driver.
    let result = simulated(&[("LEEWAY_SIMT_CUDA", "12.0"), ("LEEWAY_SIMT_CAPABILITY", "8.6")]);
    assert_eq!(result, "opened leeway simt (simulated, not a GPU), sm_86");
}

#[test]
fn a_device_too_old_for_the_kernels() {
    let result = simulated(&[("LEEWAY_SIMT_CAPABILITY", "7.5")]);
    assert_eq!(
        result,
        "cuda:0 (leeway simt (simulated, not a GPU), sm_75) has compute capability 7.5; kernels need 8.0 or later: \
         use another device, or --device cpu"
    );
}

#[test]
fn a_driver_without_a_device() {
    let result = simulated(&[("LEEWAY_SIMT_CAPABILITY", "")]);
    assert!(result.starts_with("there is no cuda:0; the driver shows 0 device(s)"), "{result}");
}

#[test]
fn a_driver_that_cannot_start() {
    let of = |fails: &str| simulated(&[("LEEWAY_SIMT_FAILS", fails)]);
    let stub = "the CUDA driver libcuda.so.1 cannot be used: CUDA_ERROR_STUB_LIBRARY (34): it is a stub for linking, not a \
                driver; take the toolkit's folder `stubs` out of LD_LIBRARY_PATH, or use --device cpu";
    for (fails, want) in [
        // A stub's first answer is to the question for its version.
        ("cuDriverGetVersion:34", stub),
        ("cuInit:34", stub),
        (
            "cuInit:803",
            "the CUDA driver libcuda.so.1 cannot be used: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): library and kernel \
             module are of different versions; restart the machine if the driver was just updated, and in a container use \
             the host's library, or use --device cpu",
        ),
        (
            "cuInit:804",
            "the CUDA driver libcuda.so.1 cannot be used: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804): a library of \
             forward compatibility does not serve this device; take the toolkit's folder `compat` out of LD_LIBRARY_PATH \
             and update the driver, or use --device cpu",
        ),
        (
            "cuCtxCreate_v2:999",
            "the CUDA driver libcuda.so.1 cannot be used: CUDA_ERROR_UNKNOWN (999): it does not say why; see whether \
             nvidia-smi works and the module nvidia_uvm is loaded, and restart the machine if not, or use --device cpu",
        ),
        (
            "cuDeviceGetCount:100",
            "there is no cuda:0; the driver shows 0 device(s), numbered from 0: let CUDA_VISIBLE_DEVICES name some, or \
             give this container or machine one, or use --device cpu",
        ),
        ("cuDeviceGetCount:304", "cuDeviceGetCount failed: an error code that the driver does not name (304)"),
    ] {
        assert_eq!(of(fails), want, "{fails}");
    }
}

/// A toolkit's stub is called `libcuda.so` alone: a driver beside or behind it is found, and without one the stub is named.
#[test]
fn a_stub_does_not_hide_the_driver() {
    let stubs = folder("stubs", Some(&simulator::driver_path().unwrap()));
    std::fs::remove_file(stubs.join("libcuda.so.1")).unwrap();
    let result = open_with("opening_says_how_it_went", &[("LEEWAY_SIMT_FAILS", "cuInit:34")], &stubs);
    // SAFETY: an installed driver's initialisers are safe to run.
    let installed = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    let named = result.starts_with("the CUDA driver libcuda.so cannot be used: CUDA_ERROR_STUB_LIBRARY (34)");
    assert!(named || installed, "{result}");
    // The driver lies in a later folder of the path.
    let driver = folder("behind-stubs", Some(&simulator::driver_path().unwrap()));
    let both = std::env::join_paths([&stubs, &driver]).unwrap();
    let result = open_with("opening_says_how_it_went", &[("LEEWAY_SIMT_FAILS", "cuInit:34")], Path::new(&both));
    assert!(result.starts_with("the CUDA driver libcuda.so.1 cannot be used"), "{result}");
}

#[test]
fn a_wrong_variable_of_the_simulator_is_an_error() {
    let result = simulated(&[("LEEWAY_SIMT_MODE", "slow")]);
    assert_eq!(result, "cuDriverGetVersion failed: CUDA_ERROR_INVALID_VALUE (1)");
}
