//! What pages show and what they may do, and their streams.

use super::*;

#[test]
fn markup_in_names_reasons_and_events_is_text() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(study, MARKUP).unwrap();
    std::fs::write(served.folder.path().join("one/cells/x.log"), format!("first\n{MARKUP}\n")).unwrap();
    for path in [
        "/",
        "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/runs/one",
        "/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/host",
        "/studies",
        "/studies/edit?file=s.toml",
        "/runs/one/logs?file=%3Cscript%3Ealert(1)%3C/script%3E",
        "/runs/one/logs?file=cells/x.log",
        "/pieces?topic=log/one/cells/x.log",
        "/compare?run=%3Cscript%3Ealert(1)%3C/script%3E&run=one",
    ] {
        let answer = served.get(path, &[&served.cookie()]);
        assert!(!answer.contains("<script>"), "{path}: {answer}");
    }
    assert!(served.get("/runs/one", &[&served.cookie()]).contains("&lt;script&gt;alert(1)"));
    for log in ["/runs/one/logs?file=cells/x.log", "/pieces?topic=log/one/cells/x.log"] {
        assert!(served.get(log, &[&served.cookie()]).contains("&lt;script&gt;alert(1)"), "{log}");
    }
    // Pieces come as HTML too.
    let pieces = served.own_get("/pieces?topic=run/5m/one");
    assert!(pieces.contains("&lt;script&gt;") && !pieces.contains("<script>"), "{pieces}");
    // What a form sends back is no HTML either.
    let own = format!("Origin: http://{}", served.host_name());
    let word = served.form_word();
    let checked =
        served.post("/studies/check", &[&served.cookie(), &own], &format!("form={word}&text=%3Cscript%3E"));
    assert!(checked.contains("line 3") && !checked.contains("<script>"), "{checked}");
}

#[test]
fn answers_have_strict_policy_that_suits_pages() {
    let served = Served::start();
    for path in [
        "/",
        "/runs/one",
        "/host",
        "/studies",
        "/studies/edit",
        "/nothing",
        "/api/runs",
        "/assets/console.js",
    ] {
        let answer = served.get(path, &[&served.cookie()]).replace("\r\n", "\n");
        let (head, body) = answer.split_once("\n\n").unwrap();
        let policy =
            head.lines().find(|line| line.to_lowercase().starts_with("content-security-policy:")).unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        for header in
            ["x-content-type-options: nosniff", "referrer-policy: same-origin", "x-frame-options: deny"]
        {
            assert!(head.to_lowercase().contains(header), "{path}: {head}");
        }
        if head.contains("text/html") {
            assert!(
                !body.contains(" style=\"") && !body.contains(" onclick") && !body.contains("<style"),
                "{path}"
            );
        }
    }
    let export = served.get("/runs/one/export", &[&served.cookie()]);
    assert!(
        export.contains("attachment; filename=\"one.html\"") && export.contains("While it ran"),
        "{export}"
    );
    assert!(!export.contains("<script>alert"), "{export}");
    // A report has styles in itself, and in exchange no origin and no scripts.
    let report = served.get("/runs/one/report", &[&served.cookie()]);
    assert!(report.contains("sandbox; default-src 'none'") && !report.contains("script-src"), "{report}");
    assert!(!report.contains("<script"), "a browser would tell that it does not run: {report}");
}

#[test]
fn run_is_readable_by_people_scripts_and_monitors() {
    let served = Served::start();
    let page = served.get("/runs/one", &[&served.cookie()]);
    for shown in ["1,234", "measuring", "failed", "running", "svg class=\"chart\"", "Stop the run"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let json = served.get("/api/runs/one", &[&served.bearer()]);
    let body: serde_json::Value = serde_json::from_str(json.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["cells"][0]["state"], "failed");
    assert_eq!(body["cells"][1]["state"], "running");
    assert_eq!(body["latest"]["sample"]["load"]["throughput_per_s"], 1234.0);
    assert!(served.get("/api/runs/one/samples", &[&served.bearer()]).contains("\"p99_us\":99.0"));
    assert!(served.get("/api/runs/one/events", &[&served.bearer()]).contains("\"kind\":\"notice\""));
    let metrics = served.get("/metrics", &[&served.bearer()]);
    for line in [
        "underlay_run_cells{run=\"one\",state=\"failed\"} 1",
        "underlay_run_cells{run=\"one\",state=\"cannot_run\"} 0",
        "underlay_cell_throughput_per_second{run=\"one\",cell=\"null/b/w-c\"} 1234",
        "underlay_cell_latency_seconds{run=\"one\",cell=\"null/b/w-c\",quantile=\"0.99\"} 0.000099",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let text = metrics.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(underlay_record::exposition::rules::broken(text), Vec::<String>::new(), "{text}");
}

#[test]
fn rewritten_run_shows_nothing_of_its_predecessor() {
    let served = Served::start();
    let events = || served.get("/api/runs/one/events", &[&served.bearer()]);
    assert!(events().contains("alert(1)"));
    let run = served.folder.path().join("one");
    let started = "2026-11-25T02:00:00Z";
    for (started_at, notice) in [(started, "of the second"), ("2026-11-25T03:00:00Z", "of the third")] {
        std::fs::remove_dir_all(&run).unwrap();
        std::fs::create_dir_all(run.join("cells")).unwrap();
        std::fs::write(run.join("run.json"), head().replace(started, started_at)).unwrap();
        let entry = FeedEntry::Notice { what: notice.to_owned() };
        let line = serde_json::to_string(&FeedLine { at_ms: 1_764_000_100_000, entry }).unwrap();
        std::fs::write(run.join(FEED_FILE), line + "\n").unwrap();
        let text = events();
        assert!(text.contains(notice) && !text.contains("alert(1)"), "{text}");
        let samples = served.get("/api/runs/one/samples", &[&served.bearer()]);
        assert!(samples.ends_with("[]"), "{samples}");
    }
}

#[test]
fn unsound_run_shows_same_problem_in_list_and_page() {
    let served = Served::start();
    let add = |name: &str, head: &str| {
        let run = served.folder.path().join(name);
        std::fs::create_dir_all(run.join("cells")).unwrap();
        std::fs::write(run.join("run.json"), head).unwrap();
        run
    };
    let damaged = add("damaged", &head());
    std::fs::write(damaged.join("cells/1.json"), "{").unwrap();
    add("headless", "{\"schema\":");
    let read = |path: &str| json(&served.get(path, &[&served.bearer()]));
    let listed = read("/api/runs");
    let find_run =
        |name: &str| listed.as_array().unwrap().iter().find(|run| run["name"] == name).unwrap().clone();
    assert_eq!(find_run("damaged")["cells"]["unreadable"], 1, "{listed}");
    assert!(find_run("headless")["problem"].as_str().unwrap().contains("run.json"), "{listed}");
    let list = served.get("/", &[&served.cookie()]);
    assert!(list.contains("1 unreadable") && list.contains("it is not a record"), "{list}");
    let own = read("/api/runs/damaged");
    assert_eq!(own["cells"][1]["state"], "unreadable", "{own}");
    let page = served.get("/runs/damaged", &[&served.cookie()]);
    assert!(page.contains("1 unreadable") && page.contains("0 of 2 cells ended"), "{page}");
    assert!(served.get("/?q=unreadable", &[&served.cookie()]).contains("/runs/damaged"));
}

#[test]
fn run_that_console_was_started_for_is_awaited() {
    let served = Served::start_for(Some("two"));
    assert!(served.url.contains("/runs/two?token="), "{}", served.url);
    let waiting = served.get("/runs/two", &[&served.cookie()]);
    assert!(status(&waiting) == 200 && waiting.contains("http-equiv=\"refresh\""), "{waiting}");
    assert_eq!(status(&served.get("/runs/three", &[&served.cookie()])), 404);
    // Programs get the status for something that is not there yet.
    assert_eq!(status(&served.get("/api/runs/two", &[&served.bearer()])), 404);
    let run = served.folder.path().join("two");
    std::fs::create_dir_all(run.join("cells")).unwrap();
    std::fs::write(run.join("run.json"), head()).unwrap();
    let begun = served.get("/runs/two", &[&served.cookie()]);
    assert!(!begun.contains("http-equiv") && begun.contains("0 of 2 cells ended"), "{begun}");
}

#[test]
fn stream_reports_changes_and_limit_refuses_more() {
    let served = Served::start();
    let cookie = served.cookie();
    let open = || {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(
            stream,
            "GET /stream?topic=run/5m/one&topic=nonsense HTTP/1.1\r\nHost: {}\r\n{}\r\n\r\n",
            served.host_name(),
            cookie
        )
        .unwrap();
        stream
    };
    // Reads until a text comes.
    let read_until = |stream: &mut TcpStream, wanted: &str| {
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        while !text.contains(wanted) {
            let count = stream.read(&mut chunk).unwrap();
            assert!(count > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
        text
    };
    let mut first = open();
    // The name of its topic is its end.
    let begun = read_until(&mut first, "\"topic\":\"run/5m/one\"");
    assert!(begun.contains("text/event-stream") && begun.contains("event-list"), "{begun}");
    let entry = FeedEntry::Notice { what: "a later notice".to_owned() };
    let line = serde_json::to_string(&FeedLine { at_ms: 1_764_000_100_000, entry }).unwrap();
    let feed = served.folder.path().join("one").join(FEED_FILE);
    std::fs::OpenOptions::new()
        .append(true)
        .open(feed)
        .unwrap()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
    read_until(&mut first, "a later notice");
    let (mut more, mut refused) = (Vec::new(), 0);
    for _ in 0..stream::MAX_STREAMS {
        // One after the other: on a busy host too many that have shown nothing yet would be ended.
        let mut stream = open();
        refused += usize::from(status(&read_until(&mut stream, "\r\n\r\n")) == 503);
        more.push(stream);
    }
    assert_eq!(refused, 1);
    // A client that leaves frees a place.
    for stream in more {
        let _ = stream.shutdown(Shutdown::Both);
    }
    let begun = std::time::Instant::now();
    while !read_until(&mut open(), "\r\n\r\n").contains("200 OK") {
        assert!(begun.elapsed() < Duration::from_secs(30), "no place became free");
        std::thread::sleep(Duration::from_millis(200));
    }
}
