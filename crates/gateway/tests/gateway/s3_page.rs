//! The page that says which rule each answer follows: its tests have to be there.

use std::collections::HashSet;
use std::path::Path;

/// Names in backquotes that end a row of a table, behind the word that they are tests.
fn named(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("| -"));
    let tests = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    tests.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Names of functions in the files of this directory and below.
fn functions(directory: &Path) -> HashSet<String> {
    let mut found = HashSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(functions(&path));
            continue;
        }
        let word = if path.extension().is_some_and(|extension| extension == "py") { "def " } else { "fn " };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found.extend(text.split(word).skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
    }
    found
}

#[test]
fn tests_named_by_page_exist() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("../../docs/gateway-s3.md")).unwrap();
    let mut defined = functions(&here.join("tests/gateway"));
    defined.extend(functions(&here.join("src")));
    let named = named(&page);
    assert!(named.len() > 60, "only {} tests are named", named.len());
    for name in named {
        assert!(defined.contains(&name), "docs/gateway-s3.md names the test `{name}`, which is not there");
    }
}
