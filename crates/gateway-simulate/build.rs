//! Libraries that look `getrandom` up by its name are to find the simulator's: see `src/machine.rs`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=getrandom");
}
