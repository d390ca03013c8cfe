//! What is done, by whom, and what nobody does by looking.

use super::*;

#[test]
fn foreign_page_cannot_command() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    let body = format!("form={word}&confirmed=yes&position=1");
    for headers in [
        vec![cookie.as_str(), "Origin: http://evil.example"],
        vec![cookie.as_str(), "Origin: null"],
        vec![cookie.as_str()],
        vec![cookie.as_str(), own.as_str(), "Sec-Fetch-Site: cross-site"],
        vec![own.as_str()],
    ] {
        for action in ["skip", "stop", "nodes", "faults"] {
            let answer = served.post(&format!("/runs/one/{action}"), &headers, &body);
            assert!(matches!(status(&answer), 401 | 403), "{headers:?}: {answer}");
        }
    }
    // Not even where it comes from here, without the word of a form of ours.
    for wrong in ["confirmed=yes&position=1", "form=guessed&confirmed=yes&position=1"] {
        assert_eq!(status(&served.post("/runs/one/skip", &[&cookie, &own], wrong)), 403);
    }
    // Nor is anything read by one.
    assert_eq!(status(&served.get("/api/runs", &[&cookie, "Origin: http://evil.example"])), 403);
    assert_eq!(status(&served.get("/api/runs", &[&cookie, "Sec-Fetch-Site: cross-site"])), 403);
    assert!(served.commands().is_empty());
}

#[test]
fn get_requests_change_nothing() {
    let served = Served::start();
    for action in [
        "/runs/one/skip?position=1&confirmed=yes",
        "/runs/one/stop",
        "/runs/one/nodes",
        "/runs/one/faults",
        "/host/faults",
        "/studies/save",
        "/studies/check",
    ] {
        assert_eq!(status(&served.get(action, &[&served.bearer()])), 405, "{action}");
    }
    assert!(served.commands().is_empty());
}

#[test]
fn page_asks_confirmation_and_script_does_not() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    let question = served.post("/runs/one/skip", &[&cookie, &own], &format!("form={word}&position=1"));
    assert!(status(&question) == 200 && question.contains("name=\"confirmed\""), "{question}");
    assert!(served.commands().is_empty());
    let done =
        served.post("/runs/one/skip", &[&cookie, &own], &format!("form={word}&position=1&confirmed=yes"));
    assert_eq!(status(&done), 303, "{done}");
    assert_eq!(status(&served.own_post("/runs/one/stop", "")), 200);
    assert_eq!(served.commands(), ["Skip(1)", "Stop"]);
    assert_eq!(status(&served.own_post("/runs/one/skip", "position=9")), 404);
    assert_eq!(status(&served.own_post("/runs/one/nodes", "node=n&action=stop")), 409);
}

#[test]
fn concurrent_edit_is_not_overwritten() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(&study, "theirs").unwrap();
    let (own, word) = (format!("Origin: http://{}", served.host_name()), served.form_word());
    let save = |read: &str| {
        let body = format!("form={word}&file=s.toml&text=mine&then=save&read={read}");
        served.post("/studies/save", &[&served.cookie(), &own], &body)
    };
    let refused = save(&studies::mark_of("what it was when I began"));
    assert!(refused.contains("It was not saved") && refused.contains("mine"), "{refused}");
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "theirs");
    // A user who has seen the present content may replace it.
    assert_eq!(status(&save(&studies::mark_of("theirs"))), 303);
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "mine");
    // And nothing is written elsewhere.
    let body = format!("form={word}&file=../s.toml&text=mine&then=save");
    assert!(served.post("/studies/save", &[&served.cookie(), &own], &body).contains("can't be a study"));
}

#[test]
fn program_saves_and_starts_study_as_documented() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(&study, "sound, theirs").unwrap();
    // An existing one, without a word of what was there.
    let started = served.own_post("/studies/save", "file=s.toml&text=sound&then=start");
    assert!(status(&started) == 200 && json(&started)["run"] == "begun", "{started}");
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "sound");
    // As it is.
    let started = served.own_post("/studies/save", "file=s.toml&then=start-short");
    assert_eq!(status(&started), 200, "{started}");
    assert_eq!(served.commands(), ["start, short: false", "start, short: true"]);
    // With what was read, by an address that is in the docs.
    let one = served.get("/api/studies/s.toml", &[&served.bearer()]);
    let read = json(&one)["read"].as_str().unwrap().to_owned();
    assert!(
        one.to_lowercase().contains(&format!("etag: \"{read}\"")) && json(&one)["text"] == "sound",
        "{one}"
    );
    let save = |read: &str, text: &str| {
        served.own_post("/studies/save", &format!("file=s.toml&text={text}&read={read}"))
    };
    let saved = save(&read, "sound+2");
    assert_eq!(status(&saved), 200, "{saved}");
    let refused = save(&read, "sound+3");
    assert!(status(&refused) == 409 && json(&refused)["read"] == json(&saved)["read"], "{refused}");
    assert_eq!(status(&save("", "sound+3")), 409);
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "sound 2");
    let answer = served.own_post("/studies/save", &format!("file=new.toml&text=sound&read={read}"));
    assert_eq!(status(&answer), 409, "{answer}");
    assert_eq!(json(&served.own_get("/api/studies")), serde_json::json!(["s.toml"]));
}

#[test]
fn program_is_told_why_study_did_not_start() {
    let served = Served::start();
    for (body, code, expected) in [
        ("file=../s.toml&text=sound&then=start", 400, "can't be a study"),
        ("file=s.toml&text=broken&then=start", 409, "has mistakes"),
        ("file=s.toml&text=sound+but+not+here&then=start", 409, "not here"),
        ("file=s.toml&text=sound+without+it&then=start-short", 409, "no short form"),
        ("file=s.toml&then=save", 400, "text"),
        ("file=none.toml&then=start", 404, "none.toml"),
        ("file=s.toml&text=sound&then=begin", 400, "start-short"),
        ("file=s.toml&text=sound&then=start&short=yes", 400, "unknown field"),
        ("file=s.toml&file=t.toml&text=sound&then=start", 400, "twice"),
    ] {
        let answer = served.own_post("/studies/save", body);
        let problem = json(&answer)["problem"].as_str().unwrap().to_owned();
        assert!(status(&answer) == code && problem.contains(expected), "{body}: {answer}");
    }
    let errors = &json(&served.own_post("/studies/save", "file=s.toml&text=broken&then=start"))["errors"];
    assert_eq!(
        (&errors[0]["file"], &errors[0]["line"], &errors[0]["severity"]),
        (&"s.toml".into(), &3.into(), &"error".into())
    );
    assert!(served.commands().is_empty());
    // A person sees the same problem, with all that was typed.
    let (cookie, own, word) =
        (served.cookie(), format!("Origin: http://{}", served.name), served.form_word());
    let body = format!("form={word}&file=s.toml&text=broken&then=start&read=");
    let page = served.post("/studies/save", &[&cookie, &own], &body);
    assert!(status(&page) == 409 && page.contains("It was not started") && page.contains("broken"), "{page}");
}

#[test]
fn power_return_names_all_affected_devices() {
    let served = Served::start();
    let (cookie, own, word) =
        (served.cookie(), format!("Origin: http://{}", served.name), served.form_word());
    let ask = |device: &str| {
        let body = format!("form={word}&storage=dark&device={device}&action=return");
        served.post("/host/faults", &[&cookie, &own], &body)
    };
    let question = ask("sda");
    assert!(
        question.contains("Plug in sda again, with power?")
            && question.contains("all of its devices: sdb too"),
        "{question}"
    );
    assert!(!question.contains("sdc"), "{question}");
    // One that has its power brings nothing else along.
    assert!(!ask("sdc").contains("sda"));
}

#[test]
fn question_focuses_harmless_button() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    for (body, words) in [
        ("action=vanish&device=d", "XFS shuts down for good"),
        ("action=slow&device=d&factor=10&for_s=30", "take 10 times as long, for 30"),
        ("action=slow&device=d&factor=10&for_s=", "until its faults are cleared"),
    ] {
        let body = format!("form={word}&storage=good&{body}");
        let question = served.post("/host/faults", &[&cookie, &own], &body);
        assert!(status(&question) == 200 && question.contains(words), "{question}");
        let focused = question.split('<').find(|tag| tag.contains("autofocus")).unwrap();
        assert!(focused.starts_with("a ") && focused.ends_with("No, go back"), "{focused}");
    }
    assert!(served.commands().is_empty());
    let wrong = served.own_post("/host/faults", "storage=good&action=slow&factor=2&for_s=soon");
    assert!(status(&wrong) == 400 && wrong.contains("for_s: expected a number"), "{wrong}");
}

#[test]
fn concurrent_saves_with_same_mark_let_one_succeed() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(&study, "theirs").unwrap();
    let read = studies::mark_of("theirs");
    let answers: Vec<(String, u16)> = std::thread::scope(|scope| {
        let save = |text: String| {
            let (served, read) = (&served, &read);
            scope.spawn(move || {
                let answer =
                    served.own_post("/studies/save", &format!("file=s.toml&text={text}&read={read}"));
                (text, status(&answer))
            })
        };
        let threads: Vec<_> = (0..8).map(|number| save(format!("text{number}"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let saved: Vec<&String> = answers.iter().filter(|(_, code)| *code == 200).map(|(text, _)| text).collect();
    assert!(answers.iter().all(|(_, code)| [200, 409].contains(code)), "{answers:?}");
    assert_eq!(saved, [&std::fs::read_to_string(&study).unwrap()], "{answers:?}");
}

#[test]
fn ending_console_finishes_storage_command() {
    let served = Served::start();
    let body = format!("storage={HUNG}&action=return");
    let hang = served.host.hung.lock().unwrap();
    std::thread::scope(|scope| {
        let command = scope.spawn(|| served.own_post("/host/faults", &body));
        let begun = std::time::Instant::now();
        let in_time = || assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", served.commands());
        while served.commands().is_empty() {
            in_time();
            std::thread::sleep(Duration::from_millis(20));
        }
        served.stop.store(true, Ordering::Relaxed);
        // Nobody else comes in meanwhile, and the names are free.
        while served.socket.exists() {
            in_time();
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(3 * POLL);
        assert!(!served.thread.as_ref().unwrap().is_finished());
        drop(hang);
        while !served.thread.as_ref().unwrap().is_finished() {
            in_time();
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(command.join());
    });
    assert_eq!(served.commands(), ["it hangs"]);
}

#[test]
fn hanging_pool_stalls_nothing_else() {
    let served = Served::start();
    let hang = served.host.hung.lock().unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| served.own_post("/host/faults", &format!("storage={HUNG}&action=clear")));
        let begun = std::time::Instant::now();
        while served.commands().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the command did not arrive");
            std::thread::sleep(Duration::from_millis(20));
        }
        let refused = served.own_post("/host/faults", &format!("storage={HUNG}&action=vanish"));
        assert_eq!(status(&refused), 503, "{refused}");
        assert!(
            json(&refused)["problem"].as_str().unwrap().contains("another command for this storage"),
            "{refused}"
        );
        assert!(refused.to_lowercase().contains("retry-after"), "{refused}");
        // As often as anybody asks for the same, it takes one thread.
        for _ in 0..60 {
            assert_eq!(
                status(&served.own_post("/host/faults", &format!("storage={HUNG}&action=clear"))),
                503
            );
        }
        assert_eq!(status(&served.own_post("/host/faults", "storage=good&action=vanish")), 200);
        assert_eq!(status(&served.own_post("/runs/one/stop", "")), 200);
        assert_eq!(status(&served.own_get("/runs/one")), 200);
        assert_eq!(served.commands(), ["it hangs", "Vanish", "Stop"]);
        drop(hang);
        assert_eq!(json(&first.join().unwrap())["done"], "after all");
    });
    assert_eq!(status(&served.own_post("/host/faults", &format!("storage={HUNG}&action=clear"))), 200);
}
