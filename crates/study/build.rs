//! A file that comes to `studies/references/` is looked for anew: the compiler itself sees changes of known files alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../studies/references");
}
