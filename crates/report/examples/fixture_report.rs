//! Writes a report of made-up figures, or of a run, to look at while working on it:
//! `cargo run -p underlay-report --example fixture_report -- OUT.html
//! [large|interrupted|stepped|mapreduce|accumulo|benchmarks|DIRECTORY]`.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/pure/fixture/mod.rs"]
mod fixture;

use std::process::ExitCode;

use underlay_report::RunDirectory;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(out) = arguments.next() else {
        eprintln!("name the HTML file to write, and optionally which figures or the directory of a run");
        return ExitCode::from(2);
    };
    let loaded = match arguments.next().as_deref() {
        Some("large") => fixture::large(),
        Some("interrupted") => fixture::interrupted(10),
        Some("stepped") => fixture::stepped::stepped(),
        Some("mapreduce") => fixture::mapreduce::mapreduce(),
        Some("benchmarks") => fixture::benchmarks::benchmarks(),
        Some("accumulo") => fixture::accumulo::accumulo(),
        Some(directory) => match RunDirectory::load(directory) {
            Ok(loaded) => loaded,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        },
        None => fixture::small(),
    };
    print!("{}", underlay_report::terminal::comparison(&loaded, 100, false));
    if let Err(error) = std::fs::write(&out, underlay_report::html::render(&loaded)) {
        eprintln!("{out} can't be written: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
