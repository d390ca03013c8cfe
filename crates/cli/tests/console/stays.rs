//! The console of a run outlives it: the page shows the report until somebody has read enough, and the run's exit code
//! stays what it was.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::browser::{self, Browser};
use crate::support::{NULL_STUDY, Playground, wait_for};
use crate::{LIMIT, Running, address_in};

const STAYS: &str = "the console stays open with the report";

/// A run with its console, and what it says on standard error.
struct Watched {
    run: Running,
    said: Receiver<String>,
}

impl Watched {
    fn start(playground: &Playground, arguments: &[&str]) -> Watched {
        let arguments = [arguments, &["--console", "--quiet", "--console-stays", "10 min"]].concat();
        let mut child =
            playground.underlay(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (tell, receiver) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Watched { run: Running(child), said: receiver }
    }

    /// The line that has this, once it is said.
    fn line_with(&self, words: &str) -> String {
        loop {
            let line = self.said.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{words:?} was not said"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn interrupt(&self) {
        interrupt(&self.run.0);
    }

    fn code(&mut self) -> Option<i32> {
        self.run.0.wait().unwrap().code()
    }
}

fn interrupt(child: &Child) {
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: the child has not been waited for, so its id is still its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
}

fn study(playground: &Playground, text: &str) {
    playground.write("null.toml", text);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
}

/// Sockets and addresses of consoles.
fn files_of_consoles(playground: &Playground) -> Vec<String> {
    let entries = std::fs::read_dir(playground.path("runtime")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("console-")).collect()
}

#[test]
fn ended_run_shows_report_until_ctrl_c() {
    if !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    study(&playground, NULL_STUDY);
    let mut watched = Watched::start(&playground, &["run", "null.toml", "--out", "runs/one"]);
    let url = address_in(&watched.line_with("console  127.0.0.1:"));
    let mut browser = Browser::start();
    browser.go(&url);
    // On this run, and not on the list.
    assert_eq!(browser.value("location.pathname"), "/runs/one");
    browser.wait_long_for("document.querySelector('.badge.state-complete')", LIMIT);
    watched.line_with(STAYS);
    browser.follow("#report");
    assert!(browser.text().contains("ops/s"), "{}", browser.text());
    browser.value("history.back()");
    browser.wait_long_for("document.querySelector('#report')", LIMIT);
    watched.interrupt();
    assert_eq!(watched.code(), Some(0));
    browser
        .wait_long_for("document.getElementById('link').innerText.includes('the console has ended')", LIMIT);
    wait_for("everything to end", LIMIT, || playground.left_behind().is_empty());
}

#[test]
fn stopped_run_keeps_exit_code_while_console_stays() {
    let playground = Playground::new();
    study(&playground, &NULL_STUDY.replace("300 ms", "3 s"));
    let mut watched = Watched::start(&playground, &["run", "null.toml", "--out", "runs/one"]);
    // The address is in a file, and opens on this run.
    let url = address_in(&watched.line_with("console  127.0.0.1:"));
    assert!(url.contains("/runs/one?token="), "{url}");
    wait_for("a cell to run", LIMIT, || playground.path("runs/one/feed.jsonl").is_file());
    watched.interrupt();
    watched.line_with("stopped;");
    watched.line_with(STAYS);
    // What stopped the run does not close the console; the next one does, and its socket and address go too.
    assert!(matches!(watched.run.0.try_wait(), Ok(None)));
    assert_eq!(files_of_consoles(&playground).len(), 2);
    watched.interrupt();
    assert_eq!(watched.code(), Some(130));
    assert_eq!(files_of_consoles(&playground), Vec::<String>::new());
    let mut resumed = Watched::start(&playground, &["run", "--resume", "runs/one"]);
    resumed.line_with(STAYS);
    resumed.interrupt();
    assert_eq!(resumed.code(), Some(0));
    wait_for("everything to end", LIMIT, || playground.left_behind().is_empty());
}

#[test]
fn refused_or_terminated_run_keeps_no_console() {
    let playground = Playground::new();
    study(&playground, &NULL_STUDY.replace("300 ms", "3 s"));
    // A run is kept in an empty directory only.
    std::fs::create_dir_all(playground.path("runs/refused/full")).unwrap();
    let mut refused = Watched::start(&playground, &["run", "null.toml", "--out", "runs/refused"]);
    // Nothing began, so that there is nothing to stay for.
    assert_eq!(refused.code(), Some(2));
    let mut watched = Watched::start(&playground, &["run", "null.toml", "--out", "runs/one"]);
    wait_for("a cell to run", LIMIT, || playground.path("runs/one/feed.jsonl").is_file());
    let pid = libc::pid_t::try_from(watched.run.0.id()).unwrap();
    // SAFETY: the child has not been waited for, so its id is still its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert_eq!(watched.code(), Some(130));
    wait_for("everything to end", LIMIT, || playground.left_behind().is_empty());
}
