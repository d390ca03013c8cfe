//! Who comes in by what: addresses on a terminal and nowhere else, a token that only reads, a Unix socket for programs,
//! and a port that a service manager holds.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::browser::{self, Browser};
use crate::elsewhere::{Plain, cookie, own_socket, request};
use crate::support::{NULL_STUDY, Playground, secret, stderr, stdout, wait_for};
use crate::{LIMIT, Running, address_in, console, without_query};

const TOKEN: &str = "correct-horse-battery-staple";

/// What a person in a terminal sees.
fn run_in_terminal(playground: &Playground, arguments: &str) -> Output {
    let mut script = Command::new("script");
    let inside = format!("exec '{}' {arguments}", env!("CARGO_BIN_EXE_underlay"));
    script.args(["-qefc", &inside, "/dev/null"]).current_dir(playground.folder.path());
    for (name, value) in playground.underlay(&[]).get_envs() {
        script.env(name, value.unwrap_or_default());
    }
    script.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap()
}

/// The body of an answer, which has to be JSON.
fn json(answer: &str) -> Value {
    assert!(answer.contains("content-type: application/json"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1)
        .unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The file that a line names.
fn file_in(line: &str) -> PathBuf {
    let (file, _) = line.split_once(" is in ").unwrap().1.rsplit_once(" for ").unwrap();
    PathBuf::from(file)
}

#[test]
fn address_is_printed_on_terminal_only() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let mut child = playground
        .underlay(&["console", "runs", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut complained = child.stderr.take().unwrap();
    let console = Running(child);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let (url, file) = (address_in(&line), file_in(&line));
    assert!(file.starts_with(playground.path("runtime")), "{line}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    cookie(&url);
    // Once it is used there is none, until somebody asks for one.
    assert!(!file.exists());
    let answer = |url: &str| {
        let (server, path) = (Plain::from_url(url), url.splitn(4, '/').nth(3).unwrap());
        request(&mut server.connect(), &format!("GET /{path} HTTP/1.1"), &server.host(), &[], "")
    };
    assert_eq!(status(&answer(&url)), 403);
    let asked = playground.output(&["console", "--new-address"]);
    assert!(asked.status.success(), "{}", stderr(&asked));
    assert!(!stdout(&asked).contains("token=") && !stderr(&asked).contains("token="), "{asked:?}");
    assert_eq!(file_in(&stdout(&asked)), file);
    let second = address_in(&stdout(&asked));
    // On a terminal it is there to be opened; the one in the file is over then, and so is the file.
    let seen = run_in_terminal(&playground, "console --new-address");
    let seen = stdout(&seen);
    let third =
        seen.split_whitespace().find(|word| word.contains("?token=")).unwrap_or_else(|| panic!("{seen}"));
    assert!(!file.exists());
    assert_eq!((status(&answer(&second)), status(&answer(third))), (403, 303));
    drop(console);
    let mut all = String::new();
    reader.read_to_string(&mut all).unwrap();
    complained.read_to_string(&mut all).unwrap();
    assert!(!all.contains("token="), "{line}{all}");
    // Without a console there is nothing to ask.
    let none = playground.output(&["console", "--new-address"]);
    assert!(
        none.status.code() == Some(2) && stderr(&none).contains("`underlay console` starts one"),
        "{none:?}"
    );
}

#[test]
fn console_on_terminal_prints_address() {
    let playground = Playground::new();
    playground.write("null.toml", NULL_STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let seen =
        run_in_terminal(&playground, "run null.toml --out runs/one --console --console-stays '0 s' --quiet");
    assert!(
        stdout(&seen).contains("?token=") && stdout(&seen).contains("--new-address"),
        "{}",
        stdout(&seen)
    );
}

#[test]
fn unix_socket_commands_and_monitor_token_reads() {
    let playground = Playground::new();
    secret(&playground, "token", TOKEN);
    playground.write("null.toml", &NULL_STUDY.replace("300 ms", "60 s"));
    playground.write("broken.toml", &NULL_STUDY.replace("records", "recods"));
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &["--token-file", "token", "--studies", "."]);
    let server = Plain::from_url(&url);
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let read = |path: &str| {
        request(&mut server.connect(), &format!("GET {path} HTTP/1.1"), &server.host(), &[&bearer], "")
    };
    let command = |path: &str, body: &str| {
        let line = format!("POST {path} HTTP/1.1");
        request(&mut own_socket(&playground, &url), &line, "localhost", &[], body)
    };
    // What the command says of a study, the address says as well.
    for file in ["null.toml", "broken.toml"] {
        let output = playground.output(&["check", file, "--json"]);
        let text: String = std::fs::read_to_string(playground.path(file))
            .unwrap()
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect();
        let checked = json(&command("/studies/check", &format!("file={file}&text={text}")));
        assert_eq!(checked, serde_json::from_str::<Value>(&stdout(&output)).unwrap(), "{file}");
    }
    let start = "file=null.toml&then=start";
    let refused =
        request(&mut server.connect(), "POST /studies/save HTTP/1.1", &server.host(), &[&bearer], start);
    let problem = json(&refused)["problem"].as_str().unwrap().to_owned();
    assert!(status(&refused) == 403 && problem.contains("curl --unix-socket"), "{refused}");
    assert_eq!(json(&read("/api/runs")), serde_json::json!([]));
    let refused = command("/studies/save", "file=broken.toml&then=start");
    assert!(status(&refused) == 409 && json(&refused)["errors"].is_array(), "{refused}");
    // A study that is there, as it is.
    let started = command("/studies/save", start);
    assert_eq!(status(&started), 200, "{started}");
    let run = json(&started)["run"].as_str().unwrap().to_owned();
    // It exists a moment before it takes commands.
    wait_for("the run to take commands", LIMIT, || {
        json(&read(&format!("/runs/{run}")))["is_running"] == true
    });
    let again = command("/studies/save", start);
    assert!(
        status(&again) == 409 && json(&again)["problem"].as_str().unwrap().contains("goes on"),
        "{again}"
    );
    let skipped = command(&format!("/runs/{run}/skip"), "position=-1");
    assert!(status(&skipped) == 400 && json(&skipped)["problem"].is_string(), "{skipped}");
    let skipped = command(&format!("/runs/{run}/skip"), "position=3");
    assert_eq!(status(&skipped), 200, "{skipped}");
    let stopped = command(&format!("/runs/{run}/stop"), "");
    assert_eq!(status(&stopped), 200, "{stopped}");
    wait_for("the run to end", LIMIT, || playground.left_behind().iter().all(|left| !left.contains(" run ")));
    let late = command(&format!("/runs/{run}/stop"), "");
    assert!(status(&late) == 409 && json(&late)["problem"] == "the run has ended", "{late}");
}

#[test]
fn killed_console_leftovers_are_removed_by_clean() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (mut killed, _url) = console(&playground, &[]);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let (_living, url) = console(&playground, &[]);
    // It removed what the first one left, so that one more is killed after it.
    let (mut killed, _url) = console(&playground, &[]);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let files = || -> Vec<String> {
        let found = std::fs::read_dir(playground.path("runtime")).unwrap();
        let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("console-")).collect()
    };
    assert_eq!(files().len(), 4, "{:?}", files());
    let cleaned = playground.output(&["clean"]);
    let printed = stdout(&cleaned);
    assert!(cleaned.status.success() && printed.matches("removed ").count() >= 2, "{printed}");
    let port = without_query(&url).rsplit_once(':').unwrap().1;
    let mut left = files();
    left.sort();
    assert_eq!(left, [format!("console-{port}.address"), format!("console-{port}.socket")]);
}

#[test]
fn port_held_by_service_manager_is_never_free() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As systemd does it: the socket is descriptor 3, and the process is named by its number.
    const AS_SYSTEMD: &str =
        "socket=$1; shift; [ $socket = 3 ] || exec 3<&$socket; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let start = |arguments: &[&str], socket: i32| {
        let mut command = Command::new("bash");
        command.args(["-c", AS_SYSTEMD, "as-systemd", &socket.to_string()]);
        command.args([env!("CARGO_BIN_EXE_underlay"), "console", "runs"]).args(arguments);
        command.current_dir(playground.folder.path()).env("UNDERLAY_RUNTIME_DIR", playground.path("runtime"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec, this call alone is made, which may be.
        unsafe {
            command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Running(command.spawn().unwrap())
    };
    let mut first = start(&[], listener.as_raw_fd());
    let mut line = String::new();
    BufReader::new(first.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&address.to_string()), "{line}");
    let url = address_in(&line);
    let (server, cookie) = (Plain::from_url(&url), cookie(&url));
    let answer = request(&mut server.connect(), "GET / HTTP/1.1", &server.host(), &[&cookie], "");
    assert_eq!(status(&answer), 200, "{answer}");
    drop(first);
    // The console is gone, and nobody else gets its port.
    assert!(TcpListener::bind(address).is_err());
    let refused = |arguments: &[&str], socket: i32, expected: &str| {
        let mut child = start(arguments, socket);
        let mut message = String::new();
        child.0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert!(child.0.wait().unwrap().code() == Some(2) && message.contains(expected), "{message}");
    };
    refused(&["--listen", "127.0.0.1:0"], listener.as_raw_fd(), "--listen");
    let other = std::os::unix::net::UnixListener::bind(playground.path("other")).unwrap();
    refused(&[], other.as_raw_fd(), "ListenStream=");
}

#[test]
fn refused_visitor_sees_next_step() {
    if !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &[]);
    let mut browser = Browser::start();
    let keep = |browser: &mut Browser, name: &str| {
        let Some(folder) = std::env::var_os("UNDERLAY_SCREENSHOTS") else { return };
        for (scheme, width) in [("light", 1280), ("dark", 390)] {
            browser.picture(width, 800, scheme, &Path::new(&folder).join(format!("{name}-{scheme}.png")));
        }
    };
    let place = without_query(&url);
    let is_styled = "getComputedStyle(document.querySelector('main')).borderRadius === '14px'";
    browser.go(place);
    browser.wait_for_text("underlay console --new-address");
    assert_eq!(browser.value(is_styled), true);
    keep(&mut browser, "no-session");
    browser.go(&format!("{place}/?token=wrong"));
    browser.wait_for_text("is no longer valid");
    assert_eq!(browser.value(is_styled), true);
    keep(&mut browser, "wrong-address");
    // The right token at the wrong name: the page leads on, and opens the console.
    let (name, rest) = url.split_once("://").unwrap().1.split_once(':').unwrap();
    browser.go(&format!("http://127.0.0.1:{rest}"));
    browser.wait_for_text(name);
    keep(&mut browser, "wrong-name");
    browser.follow("main a");
    browser.wait_for_text("There is no run");
}
