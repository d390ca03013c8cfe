//! Who is let in where, by what, and what those see who are not.

use super::*;

#[test]
fn token_becomes_cookie_and_wrong_one_is_refused() {
    let served = Served::start();
    let secret = served.new_secret();
    let first = served.get(&format!("/runs/one?span=30m&token={secret}"), &[]);
    assert_eq!(status(&first), 303);
    assert!(first.to_lowercase().contains("location: /runs/one?span=30m\r\n"), "{first}");
    assert_eq!(status(&served.get("/", &[&served.cookie()])), 200);
    assert_eq!(status(&served.get("/api/runs", &[&served.bearer()])), 200);
    let (forged, by_monitor) =
        (format!("Cookie: underlay-console={}", served.token), format!("/?token={}", served.token));
    let used = format!("/?token={secret}");
    for (path, header) in [
        ("/", "X: y"),
        ("/", forged.as_str()),
        ("/", "Authorization: Bearer wrong"),
        ("/", "Authorization: Basic wrong"),
        ("/?token=wrong", "X: y"),
        (&used, "X: y"),
        (&by_monitor, "X: y"),
        ("/?token=", "X: y"),
        ("/assets/console.js", "X: y"),
        ("/metrics", "X: y"),
        ("/stream?topic=runs", "X: y"),
    ] {
        let answer = served.get(path, &[header]);
        assert!(matches!(status(&answer), 401 | 403), "{path}: {answer}");
        assert!(!answer.to_lowercase().contains("set-cookie"), "{answer}");
    }
    // The redirect stays here.
    let redirect = served.get(&format!("//evil.example/?token={}", served.new_secret()), &[]);
    assert!(!redirect.to_lowercase().contains("location: //"), "{redirect}");
}

#[test]
fn rebound_host_name_is_refused() {
    let served = Served::start();
    let cookie = served.cookie();
    // Every port of an address gets its cookies: they count at the name of this start alone.
    for (name, by_cookie, by_token) in [
        ("rebound.example", 421, 421),
        ("127.0.0.1.rebound.example:80", 421, 421),
        ("u-0123.localhost:7100", 421, 421),
        ("lab.example:9", 401, 200),
        ("localhost", 401, 200),
        ("127.0.0.1:7100", 401, 200),
        ("[::1]:7", 401, 200),
        (served.name.as_str(), 200, 200),
    ] {
        let status_with = |header: String| {
            status(&served.raw(&["GET / HTTP/1.1".to_owned(), format!("Host: {name}"), header], ""))
        };
        assert_eq!(
            (status_with(cookie.clone()), status_with(served.bearer())),
            (by_cookie, by_token),
            "{name}"
        );
    }
    let exchanged =
        [format!("GET /?token={} HTTP/1.1", served.new_secret()), format!("Host: {}", served.address)];
    assert!(!served.raw(&exchanged, "").to_lowercase().contains("set-cookie"));
    // The rebound page sends the token that it may have been given, and its own name as the origin.
    let lines = [
        "GET /api/runs HTTP/1.1".to_owned(),
        "Host: rebound.example".to_owned(),
        "Origin: http://rebound.example".to_owned(),
        served.bearer(),
    ];
    assert_eq!(status(&served.raw(&lines, "")), 421);
    let without_host = ["GET / HTTP/1.1".to_owned(), cookie];
    assert!(status(&served.raw(&without_host, "")) >= 400);
}

#[test]
fn console_listens_on_loopback_only() {
    let options = ConsoleOptions {
        listen: ListenAddress::At((Ipv4Addr::UNSPECIFIED, 0).into()),
        runs: PathBuf::from("."),
        opens_on: None,
        studies: PathBuf::from("."),
        names: HostNames::default(),
        token: None,
        own_folder: PathBuf::from("."),
        tls: None,
    };
    let Err(ConsoleError::Mistake(refused)) = ConsoleServer::listen(options, Arc::new(Fake::default()))
    else {
        panic!("it listens for everybody")
    };
    assert!(refused.contains("ssh -L"), "{refused}");
}

#[test]
fn duplicate_header_is_refused() {
    let served = Served::start();
    let (get, name) = ("GET / HTTP/1.1".to_owned(), format!("Host: {}", served.name));
    let (cookie, evil) = (served.cookie(), "Host: rebound.example".to_owned());
    for hosts in [[name.clone(), name.clone()], [name.clone(), evil.clone()], [evil, name.clone()]] {
        let [one, two] = hosts;
        let answer = served.raw(&[get.clone(), one, two, cookie.clone()], "");
        assert_eq!(status(&answer), 400, "{answer}");
    }
    for doubled in ["Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Authorization"] {
        let own = if doubled == "Origin" { format!("http://{}", served.name) } else { "none".to_owned() };
        let doubled = [format!("{doubled}: {own}"), format!("{doubled}: other")];
        let lines = [&[get.clone(), name.clone(), cookie.clone()], doubled.as_slice()].concat();
        assert_eq!(status(&served.raw(&lines, "")), 400, "{lines:?}");
    }
    // The first line names a host too.
    let other = ["GET http://rebound.example/ HTTP/1.1".to_owned(), name.clone(), cookie.clone()];
    assert_eq!(status(&served.raw(&other, "")), 421);
    let same = [format!("GET http://{}/ HTTP/1.1", served.name), name, cookie];
    assert_eq!(status(&served.raw(&same, "")), 200);
}

#[test]
fn monitor_token_reads_everything_and_changes_nothing() {
    let served = Served::start();
    std::fs::write(served.folder.path().join("s.toml"), "sound").unwrap();
    for path in
        ["/", "/runs/one", "/host", "/studies", "/studies/edit?file=s.toml", "/runs/one/logs", "/api/host"]
    {
        let answer = served.get(path, &[&served.bearer()]);
        assert_eq!(status(&answer), 200, "{answer}");
        // The word of our forms is for pages.
        assert!(
            !json(&answer).to_string().contains("confirmed") && !answer.contains("name=\"form\""),
            "{answer}"
        );
    }
    assert_eq!(status(&served.get("/metrics", &[&served.bearer()])), 200);
    for action in [
        "/runs/one/skip",
        "/runs/one/stop",
        "/runs/one/nodes",
        "/runs/one/faults",
        "/host/faults",
        "/host/stop",
        "/studies/check",
        "/studies/save",
        "/addresses",
    ] {
        let body = "position=1&confirmed=yes&file=s.toml&text=sound&then=start&storage=good&action=clear";
        let answer = served.post(action, &[&served.bearer()], body);
        let problem = json(&answer)["problem"].as_str().unwrap().to_owned();
        // Who used it for commands until now reads what to do instead.
        assert!(status(&answer) == 403 && problem.contains("--unix-socket"), "{answer}");
    }
    for pieces in ["/stream?topic=runs", "/pieces?topic=runs"] {
        assert_eq!(status(&served.get(pieces, &[&served.bearer()])), 403, "{pieces}");
    }
    assert!(served.commands().is_empty());
}

#[test]
fn unix_socket_serves_programs_of_this_user() {
    use std::os::unix::fs::PermissionsExt as _;

    let served = Served::start();
    assert_eq!(std::fs::metadata(&served.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(status(&served.own_get("/api/runs")), 200);
    let done = served.own_post("/runs/one/stop", "");
    assert_eq!(json(&done)["done"], "the run stops");
    // Where it is forwarded to a port, a page may reach it: by its own name, or with what browsers say of a page.
    for header in [
        "Host: rebound.example",
        "Origin: http://localhost",
        "Sec-Fetch-Site: same-origin",
        "Sec-Fetch-Mode: cors",
    ] {
        let mut lines = vec!["POST /runs/one/stop HTTP/1.1".to_owned(), header.to_owned()];
        if !header.starts_with("Host") {
            lines.push("Host: localhost".to_owned());
        }
        lines.push("Content-Type: application/x-www-form-urlencoded".to_owned());
        let answer = served.own_raw(&lines, "");
        assert!(matches!(status(&answer), 403 | 421), "{header}: {answer}");
    }
    assert_eq!(served.commands(), ["Stop"]);
    let socket = served.socket.clone();
    drop(served);
    assert!(!socket.exists());
}

#[test]
fn new_address_is_private_and_replaces_old_one() {
    let served = Served::start();
    let (cookie, own, word) =
        (served.cookie(), format!("Origin: http://{}", served.name), served.form_word());
    let refused = served.post("/addresses", &[&cookie, &own], &format!("form={word}&confirmed=yes"));
    assert_eq!(status(&refused), 403, "{refused}");
    let (first, second) = (served.new_secret(), served.new_secret());
    assert_eq!(status(&served.get(&format!("/?token={first}"), &[])), 403);
    let answer = json(&served.own_post("/addresses", "into=file"));
    assert_eq!(status(&served.get(&format!("/?token={second}"), &[])), 403);
    let file = Path::new(answer["file"].as_str().unwrap());
    assert!(file.starts_with(served.own_folder.path()), "{answer}");
    let third = std::fs::read_to_string(file).unwrap();
    let third = third.trim().split_once("?token=").unwrap().1;
    assert_eq!(status(&served.get(&format!("/?token={third}"), &[])), 303);
    assert!(!file.exists());
}

/// What a page shows, without its markup.
fn shown(answer: &str) -> String {
    let body = answer.split_once("<body>").unwrap_or_else(|| panic!("{answer}")).1;
    let mut text = String::new();
    let mut is_tag = false;
    for character in body.chars() {
        match character {
            '<' => is_tag = true,
            '>' => is_tag = false,
            other if !is_tag => text.push(other),
            _ => {}
        }
    }
    text
}

#[test]
fn refused_visitor_sees_styled_page_with_next_step() {
    let served = Served::start();
    let secret = served.new_secret();
    let request_at = |name: &str, path: &str, more: &str| {
        served.raw(&[format!("GET {path} HTTP/1.1"), format!("Host: {name}"), more.to_owned()], "")
    };
    let right_at_the_wrong_name = request_at("127.0.0.1:8123", &format!("/?token={secret}"), "X: y");
    for (answer, code, next) in [
        (request_at(&served.name, "/", "X: y"), 401, "underlay console --new-address"),
        (request_at("127.0.0.1:7100", "/", "X: y"), 401, "underlay console --new-address"),
        (request_at(&served.name, "/?token=wrong", "X: y"), 403, "underlay console --new-address"),
        (
            request_at(&served.name, &format!("/?token={}", served.token), "X: y"),
            403,
            "underlay console --new-address",
        ),
        (request_at(&served.name, "/", "Sec-Fetch-Site: cross-site"), 403, "Open the console itself"),
        (request_at("rebound.example", "/", "X: y"), 421, "--name"),
        (right_at_the_wrong_name.clone(), 401, served.name.split(':').next().unwrap()),
    ] {
        assert_eq!(status(&answer), code, "{answer}");
        assert!(shown(&answer).contains(next) && shown(&answer).contains("What to do next"), "{answer}");
        // Its style is in it, and the policy names that and nothing else.
        let head = answer.split_once("\r\n\r\n").unwrap().0;
        let policy = format!("default-src 'none'; style-src '{}'", *outsiders::STYLE_HASH);
        assert!(answer.contains("<style>") && head.contains(&policy) && !head.contains("unsafe"), "{head}");
        assert!(!answer.contains("<script") && !answer.contains("/assets/"), "{answer}");
    }
    // By the port that leads here, whatever its number on the other host. What was shown is not used up by that.
    let label = served.name.rsplit_once(':').unwrap().0;
    let link = format!("href=\"http://{label}:8123/?token={secret}\"");
    assert!(right_at_the_wrong_name.contains(&link), "{right_at_the_wrong_name}");
    // Who follows it comes from a page of another name: the browser sends the new cookie once a page of ours goes on.
    let led = served.raw(
        &[
            format!("GET /runs/one?token={secret} HTTP/1.1"),
            format!("Host: {}", served.name),
            "Sec-Fetch-Site: cross-site".to_owned(),
            "Sec-Fetch-Mode: navigate".to_owned(),
        ],
        "",
    );
    assert!(status(&led) == 200 && led.to_lowercase().contains("set-cookie: "), "{led}");
    assert!(led.contains("content=\"0; url=/runs/one\"") && !led.contains(&secret), "{led}");
}
