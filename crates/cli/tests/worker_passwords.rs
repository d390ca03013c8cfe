//! A worker's user and password, and a coordinator that names somebody who would like to have them.

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Playground, fake_ssh, secret, stderr};

/// Somebody who would like to have a password: where, and how many have come so far.
fn stranger() -> (String, impl Fn() -> usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    // It hangs up at once, and ends with the tests.
    std::thread::spawn(move || {
        listener.incoming().for_each(|_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
    });
    (endpoint, move || count.load(Ordering::SeqCst))
}

#[test]
fn password_goes_only_to_listed_host() {
    let playground = Playground::new();
    let path = fake_ssh(&playground, "for last; do :; done\nexec sh -c \"$last\"");
    for (system, key, variables) in
        [("cassandra", "endpoints", "CASSANDRA"), ("accumulo", "zookeepers", "ACCUMULO")]
    {
        let (endpoint, came) = stranger();
        let place = format!("{key}={endpoint}");
        let run = |may_connect: Option<&str>| {
            let mut arguments = vec!["ycsb", "run", system, "--set", &place];
            if system == "accumulo" {
                arguments.extend(["--set", "instance=prod"]);
            }
            arguments.extend([
                "--workers",
                "ssh:one",
                "--threads",
                "1",
                "--mix",
                "c",
                "-p",
                "recordcount=10",
            ]);
            arguments.extend(["--remote-program", env!("CARGO_BIN_EXE_underlay")]);
            let mut command = playground.underlay(&arguments);
            command.env("PATH", &path);
            for (name, value) in [("USERNAME", "loader"), ("PASSWORD", "not for everybody")] {
                command.env(format!("{variables}_{name}"), value);
            }
            match may_connect {
                Some(list) => command.env("UNDERLAY_MAY_CONNECT", list),
                None => command.env_remove("UNDERLAY_MAY_CONNECT"),
            };
            let output = command.output().unwrap();
            assert_ne!(output.status.code(), Some(0));
            stderr(&output)
        };
        for (list, words) in [
            (None, "has a user and a password but no list"),
            (Some("127.0.0.1:1,db.example"), "may not connect to"),
            (Some("127.0.0.1:x"), "is not a host"),
        ] {
            let message = run(list);
            assert!(message.contains(words), "{system}, {list:?}: {message}");
            if words != "is not a host" {
                assert!(message.contains(&format!("--may-connect {endpoint}")), "{system}: {message}");
            }
            assert!(!message.contains("not for everybody"), "{message}");
            assert_eq!(came(), 0, "{system}, {list:?}");
        }
        // Accumulo is left out here: it would wait too long for its ZooKeeper.
        if system == "cassandra" {
            let message = run(Some(&endpoint));
            assert!(message.contains(&format!("can't connect to {endpoint}")), "{message}");
            assert!(came() > 0);
        }
    }
}

/// As a user starts it to listen, with the option instead of the variable.
#[test]
fn listening_worker_connects_to_its_list_with_passwords() {
    let playground = Playground::new();
    secret(&playground, "token", "correct horse battery staple");
    let (endpoint, came) = stranger();
    for (list, password, words) in [
        (None, false, "can't connect to"),
        (None, true, "has a user and a password but no list"),
        (Some("127.0.0.1:1"), false, "may not connect to"),
        (Some("127.0.0.1"), true, "can't connect to"),
    ] {
        let mut arguments = vec!["worker", "--listen", "127.0.0.1:0", "--token-file", "token"];
        arguments.extend(list.iter().flat_map(|list| ["--may-connect", "[::1]:9042", "--may-connect", list]));
        let mut command = playground.underlay(&arguments);
        command.env_remove("UNDERLAY_MAY_CONNECT").stdout(Stdio::piped()).stderr(Stdio::null());
        if password {
            command.env("CASSANDRA_USERNAME", "loader").env("CASSANDRA_PASSWORD", "not for everybody");
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let worker = line.trim().strip_prefix("listens on ").unwrap().split(';').next().unwrap().to_owned();
        let place = format!("endpoints={endpoint}");
        let arguments =
            ["ycsb", "run", "cassandra", "--set", &place, "--workers", &worker, "--token-file", "token"];
        let before = came();
        let output = playground
            .output(&[&arguments[..], &["--threads", "1", "--mix", "c", "-p", "recordcount=10"]].concat());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stderr(&output).contains(words), "{list:?}, {password}: {}", stderr(&output));
        assert_eq!(came() > before, words == "can't connect to", "{list:?}, {password}");
    }
}
