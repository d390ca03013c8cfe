//! What a person sees who runs the program in a terminal.

mod support;

use std::process::{Output, Stdio};

use support::{Playground, finished_run, records, stdout};

/// In a terminal of this many columns; what it was sent is on standard output.
fn run_in_terminal(playground: &Playground, columns: u32, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_underlay");
    let inside = format!("stty cols {columns} rows 24; exec '{program}' {arguments}");
    // It makes a terminal for what it runs.
    let mut script = std::process::Command::new("script");
    script.args(["-qefc", &inside, "/dev/null"]).current_dir(playground.folder.path());
    for (name, value) in playground.underlay(&[]).get_envs() {
        script.env(name, value.unwrap_or_default());
    }
    script.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap()
}

/// The terminal's orders in a text: what follows each escape up to its letter.
fn orders(text: &str) -> Vec<String> {
    let mut orders = Vec::new();
    for part in text.split('\x1b').skip(1) {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(part.len(), |end| end + 1);
        orders.push(part[..end].to_owned());
    }
    orders
}

fn without_orders(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(part.len(), |end| end + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[test]
fn narrow_terminal_gets_fitting_lines() {
    let playground = Playground::new();
    finished_run(&playground);
    for arguments in [
        "report out",
        "report out out",
        "media list",
        "media show ssd-sata",
        "advise split hdd=6@120MB/s ssd=1@1300MB/s",
        "doctor",
    ] {
        let output = run_in_terminal(&playground, 40, arguments);
        let printed = without_orders(&stdout(&output));
        assert!(printed.lines().count() > 3, "{arguments}: {printed}");
        // A word that is longer than a line can't be helped, nor what is meant to be copied.
        let is_whole =
            |line: &str| line.contains('<') || line.split_whitespace().any(|word| word.chars().count() > 34);
        for line in printed.lines().map(str::trim_end).filter(|line| !is_whole(line)) {
            assert!(line.chars().count() <= 40, "{arguments}: {line}\n{printed}");
        }
    }
}

/// Messages about a record stay on the screen under later drawing, and text from files gives the terminal no orders.
#[test]
fn notices_stay_and_files_give_no_orders() {
    let playground = Playground::new();
    finished_run(&playground);
    let run = playground.path("out");
    let mut cells: Vec<_> =
        std::fs::read_dir(run.join("cells")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cells.sort();
    let whole = std::fs::read(&cells[1]).unwrap();
    std::fs::write(&cells[1], &whole[..whole.len() / 2]).unwrap();
    let output = run_in_terminal(&playground, 100, "run --resume out");
    let printed = stdout(&output);
    assert!(output.status.success(), "{printed}");
    let (_, after) = printed.split_once("is damaged").unwrap_or_else(|| panic!("{printed:?}"));
    let (rest, _) = after.split_once("its cell is run again").unwrap_or_else(|| panic!("{printed:?}"));
    assert!(!rest.contains("\x1b[2K") && !rest.contains("\x1b[1A"), "{printed:?}");
    assert!(after.contains('\n'), "{printed:?}");
    assert_eq!(records(&run).len(), 4);

    let head = run.join("run.json");
    let text = std::fs::read_to_string(&head).unwrap();
    let title = "A study whose title is longer";
    assert!(text.contains(title), "{text}");
    std::fs::write(&head, text.replace(title, r"A \u001b[2Jstudy\u001b]0;bad\u0007\u009b31m whose")).unwrap();
    let printed = stdout(&run_in_terminal(&playground, 100, "report out"));
    assert!(without_orders(&printed).contains("study"), "{printed:?}");
    // Colours alone: nothing is cleared, moved or named.
    let orders = orders(&printed);
    assert!(orders.iter().all(|order| order.starts_with('[') && order.ends_with('m')), "{orders:?}");
    assert!(!printed.contains(['\u{9b}', '\u{7}']), "{printed:?}");
}
