//! Gives the library the name under which programs look for a CUDA driver.

fn main() {
    if std::env::consts::OS == "linux" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
