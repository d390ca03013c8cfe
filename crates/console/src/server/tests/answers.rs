//! Each client gets answers in its form: programs get JSON for every error, no matter which layer found it.

use super::*;

#[test]
fn program_gets_json_for_all_answers() {
    let served = Served::start();
    let long = format!("text={}", "x".repeat(7 << 20));
    let cases: [(&str, &str, &str, u16); 21] = [
        ("GET", "/", "", 200),
        ("GET", "/studies", "", 200),
        ("GET", "/runs/none", "", 404),
        ("GET", "/runs/one/cells/none.json", "", 404),
        ("GET", "/runs/one/logs?file=none.log", "", 404),
        ("GET", "/runs/%ff", "", 400),
        ("GET", "/nothing", "", 404),
        ("GET", "/assets/none", "", 404),
        ("GET", "/api/runs/one/samples?since_s=soon", "", 400),
        ("GET", "/api/compare?run=one", "", 400),
        ("GET", "/api/studies/none.toml", "", 404),
        ("GET", "/stream", "", 400),
        ("GET", "/runs/one/stop", "", 405),
        ("DELETE", "/api/runs", "", 405),
        ("POST", "/runs/one/skip", "position=-1", 400),
        ("POST", "/runs/one/skip", "position=9", 404),
        ("POST", "/runs/one/skip", "positon=1", 400),
        ("POST", "/runs/none/stop", "", 404),
        ("POST", "/runs/one/nodes", "node=n&action=dance", 400),
        ("POST", "/host/faults", "storage=x&action=vanish&for_s=5", 400),
        ("POST", "/host/stop", "process=1", 409),
    ];
    for (method, path, body, expected) in cases {
        let form = "Content-Type: application/x-www-form-urlencoded".to_owned();
        let answer =
            served.own_raw(&[format!("{method} {path} HTTP/1.1"), "Host: localhost".to_owned(), form], body);
        assert_eq!(status(&answer), expected, "{method} {path}: {answer}");
        let reply = json(&answer);
        assert!(expected == 200 || reply["problem"].is_string(), "{method} {path}: {answer}");
    }
    let untyped = ["POST /runs/one/stop HTTP/1.1", "Host: localhost", "Content-Type: text/plain"];
    let untyped = served.own_raw(&untyped.map(str::to_owned), "x");
    assert!(status(&untyped) == 415 && json(&untyped)["problem"].is_string(), "{untyped}");
    // The answer to a wrong method still lists the methods that an address takes.
    assert!(served.own_get("/runs/one/stop").to_lowercase().contains("\r\nallow: post"));
    let refused = served.own_post("/studies/check", &long);
    assert!(
        status(&refused) == 413 && json(&refused)["problem"].as_str().unwrap().contains("6 MiB"),
        "{refused}"
    );
}

#[test]
fn wrong_token_or_json_request_gets_json() {
    let served = Served::start();
    for (path, header, expected) in [
        ("/", "Authorization: Bearer wrong", 401),
        ("/api/runs", "X: y", 401),
        ("/metrics", "X: y", 401),
        ("/", "Accept: application/json", 401),
        ("/?token=wrong", "Accept: application/json", 403),
    ] {
        let answer = served.get(path, &[header]);
        assert_eq!(status(&answer), expected, "{path}, {header}: {answer}");
        // Cause and next step are one text.
        assert!(json(&answer)["problem"].as_str().unwrap().contains('.'), "{answer}");
    }
    let rebound = ["GET /api/runs HTTP/1.1", "Host: rebound.example"].map(str::to_owned);
    assert!(json(&served.raw(&rebound, ""))["problem"].as_str().unwrap().contains("--name"));
    // A page's own script asks for pieces, and a browser for pages.
    let cookie = served.cookie();
    assert!(served.get("/", &[&cookie, "Accept: */*"]).contains("<html"));
    assert!(json(&served.get("/", &[&cookie, "Accept: application/json"])).is_array());
    let (own, word) = (format!("Origin: http://{}", served.name), served.form_word());
    // What has to be confirmed is not done, and is no question that a program overlooks.
    let body = format!("form={word}&position=1");
    let asked = served.post("/runs/one/skip", &[&cookie, &own, "Accept: application/json"], &body);
    assert!(
        status(&asked) == 409 && json(&asked)["problem"].as_str().unwrap().contains("confirmed=yes"),
        "{asked}"
    );
    assert!(served.commands().is_empty());
}

#[test]
fn study_check_matches_command() {
    let served = Served::start();
    let checked = |text: &str| json(&served.own_post("/studies/check", &format!("file=s.toml&text={text}")));
    let wrong = checked("nonsense");
    let expected = serde_json::json!({ "errors": [{
        "file": "s.toml", "line": 3, "column": 1, "severity": "error", "message": "unknown word nonsense", "label": null, "help": null,
    }] });
    assert_eq!(wrong, expected);
    assert_eq!(checked("sound"), serde_json::json!([]));
    // Nothing outside of the directory of studies is read for it.
    for file in ["../s.toml", "/etc/s.toml", "a/s.toml"] {
        assert_eq!(
            status(&served.own_post("/studies/check", &format!("file={file}&text=sound"))),
            400,
            "{file}"
        );
    }
}
