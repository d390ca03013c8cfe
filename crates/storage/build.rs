//! A file that comes to `media/` is looked for anew: the compiler itself sees changes of known files alone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for folder in ["../../media", "../../media/layouts"] {
        println!("cargo::rerun-if-changed={folder}");
    }
}
