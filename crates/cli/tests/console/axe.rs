//! axe's rules for people who use a keyboard, a screen reader, or little contrast, held against pages as they are
//! shown. <https://github.com/dequelabs/axe-core>

use std::process::Command;

use serde_json::Value;
use underlay_systems::artifacts::ArtifactList;

use crate::browser::Browser;

const AXE: ArtifactList =
    ArtifactList { name: "axe", pom: include_str!("axe/pom.xml"), locked: include_str!("axe/locked.txt") };
const JAR: &str = "selenium-4.11.1.jar";
const SCRIPT: &str = "axe.min.js";
/// What is wrong, each with its first places.
const RUN: &str = "axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations.map(one => one.id + ': ' + one.help + \
                   one.nodes.slice(0, 4).map(node => '\\n    ' + node.target.join(' ') + ' ' + node.failureSummary.replace(/\\s+/g, ' ')).join('')))";

/// The rules, fetched once by Maven. In CI it is a failure where they can't be had, elsewhere it is said.
pub(crate) struct Axe(Option<String>);

impl Axe {
    pub(crate) fn fetched() -> Axe {
        let script = fetch();
        assert!(script.is_ok() || std::env::var_os("CI").is_none(), "CI must have axe: {script:?}");
        if let Err(problem) = &script {
            eprintln!("NOT RUN: axe's rules can't be had: {problem}");
        }
        Axe(script.ok())
    }

    /// The page that is open now keeps all rules, in light, in dark and on a narrow screen.
    pub(crate) fn check(&self, browser: &mut Browser, page: &str) {
        let Some(script) = &self.0 else { return };
        for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390)] {
            browser.show(width, 900, scheme);
            browser.value(&format!("{script}; true"));
            let found = browser.value(RUN);
            let found: Vec<&str> = found.as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert!(found.is_empty(), "{page}, {scheme}, {width} wide:\n{}", found.join("\n"));
        }
    }
}

fn fetch() -> Result<String, String> {
    let folder = AXE.directory(&|_| {}).map_err(|error| error.to_string())?;
    let unpacked = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut unpacking = Command::new("jar");
    unpacking.arg("xf").arg(folder.join(JAR)).arg(SCRIPT).current_dir(unpacked.path());
    let status = unpacking.status().map_err(|error| format!("jar: {error}"))?;
    if !status.success() {
        return Err(format!("jar: {status}"));
    }
    std::fs::read_to_string(unpacked.path().join(SCRIPT)).map_err(|error| error.to_string())
}
