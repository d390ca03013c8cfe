//! What else is up on this host, in a browser and for a monitor: a load from several workers, the workers, a gateway;
//! stopped from the page.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::axe::Axe;
use crate::browser::{self, Browser};
use crate::elsewhere::{Plain, own_socket, request};
use crate::support::{Playground, secret, wait_for};
use crate::{LIMIT, Running, console, keep_pictures, without_query};

const TOKEN: &str = "correct-horse-battery-staple";

/// A worker, and where it listens.
fn worker(playground: &Playground) -> (Running, String) {
    let arguments = ["worker", "--listen", "127.0.0.1:0", "--token-file", "token"];
    let mut child = playground.underlay(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listens on ").and_then(|rest| rest.split(';').next());
    (Running(child), address.unwrap_or_else(|| panic!("{line}")).to_owned())
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

#[test]
fn load_shows_host_figures_and_worker_stops_from_page() {
    if !browser::is_there() {
        return;
    }
    let playground = Playground::new();
    secret(&playground, "token", TOKEN);
    std::fs::create_dir(playground.path("runs")).unwrap();
    let ((mut one, first), (_two, second)) = (worker(&playground), worker(&playground));
    let (_console, url) = console(&playground, &["--token-file", "token"]);
    let place = without_query(&url).to_owned();
    let workers = format!("{first},{second}");
    let mut load = vec!["ycsb", "run", "null", "--workers", &workers, "--token-file", "token", "--json"];
    load.extend("--threads 4 --rate 2000 --mix c --duration 3600 -p recordcount=1000".split(' '));
    let load = playground.underlay(&load).stdout(Stdio::null()).spawn().map(Running).unwrap();
    let mut browser = Browser::start();
    browser.go(&url);
    browser.go(&format!("{place}/host"));
    // A row a host, and lines over time, without loading the page again.
    for host in [&first, &second] {
        browser.wait_for(&format!(
            "[...document.querySelectorAll('#host-loads tbody tr')].some(row => row.innerText.includes('{host}') && row.innerText.includes('running') && !row.innerText.includes('\\t0\\t'))"
        ));
    }
    browser.wait_for("document.querySelectorAll('#host-loads svg.chart').length >= 2");
    let axe = Axe::fetched();
    axe.check(&mut browser, "this host, with a load");
    keep_pictures(&mut browser, "host", 1600);
    // The same for machines.
    let server = Plain::from_url(&url);
    let metrics =
        || request(&mut server.connect(), "GET /metrics HTTP/1.1", &server.host(), &[&bearer()], "");
    let of_host = format!(
        "underlay_load_throughput_per_second{{kind=\"load\",process=\"{}\",host=\"{first}\"}}",
        load.0.id()
    );
    wait_for("the metrics of a host", LIMIT, || {
        let metrics = metrics();
        let line = metrics.lines().find(|line| line.starts_with(&of_host));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).is_some_and(|rate| rate > 0.0)
    });
    assert!(metrics().contains("quantile=\"0.99\""));
    let json = request(&mut server.connect(), "GET /api/host HTTP/1.1", &server.host(), &[&bearer()], "");
    let body: serde_json::Value = serde_json::from_str(json.split_once("\r\n\r\n").unwrap().1).unwrap();
    let services = body["services"].as_array().unwrap();
    let service = services.iter().find(|one| one["kind"] == "load").unwrap();
    assert_eq!(service["live"]["moments"][0]["workers"].as_array().unwrap().len(), 2);
    assert_eq!(services.iter().filter(|one| one["kind"] == "worker" && one["live"].is_object()).count(), 2);
    // A worker is stopped: the load goes on without it, and says so.
    let stop = format!("#host-services form:has([value='{}']) button", one.0.id());
    browser.follow(&stop);
    assert!(browser.text().contains("Stop process"), "{}", browser.text());
    browser.follow("button.danger");
    wait_for("the worker to end", LIMIT, || has_ended(&mut one.0));
    browser.wait_for("document.querySelector('#host-loads tr.bad')?.innerText.includes('lost')");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}")
}

/// A port that nobody has at the moment.
fn free() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn gateway_shows_figures_and_stops_from_page() {
    let program = Path::new(env!("CARGO_BIN_EXE_underlay")).with_file_name("underlay-gateway");
    assert!(
        program.is_file() || std::env::var_os("CI").is_none(),
        "CI must have built {}",
        program.display()
    );
    if !program.is_file() {
        eprintln!("NOT RUN: this test needs {}: cargo build --locked -p underlay-gateway", program.display());
        return;
    }
    let playground = Playground::new();
    secret(&playground, "token", TOKEN);
    std::fs::create_dir_all(playground.path("store")).unwrap();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (address, admin) = (free(), free());
    let text = format!(
        "listen = \"{address}\"\n[local]\ndirectory = \"{}/local\"\njournal = \"64 MiB\"\nmemory = \"64 MiB\"\n[admin]\nlisten = \"{admin}\"\n\
         [key.test]\nid = \"TEST\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"*\", may = [\"read\", \"write\"] }}]\n\
         [bucket.lake]\nstore = \"{}\"\n",
        playground.folder.path().display(),
        playground.path("store").display()
    );
    playground.write("gateway.toml", &text);
    let mut command = Command::new(&program);
    command.args(["serve", "gateway.toml"]).current_dir(playground.folder.path());
    command.env("GATEWAY_SECRET", "0123456789abcdef0123").stdin(Stdio::null()).stderr(Stdio::null());
    let mut gateway = command.spawn().map(Running).unwrap();
    let (_console, url) = console(&playground, &["--token-file", "token"]);
    let server = Plain::from_url(&url);
    let get = |path: &str| {
        request(&mut server.connect(), &format!("GET {path} HTTP/1.1"), &server.host(), &[&bearer()], "")
    };
    let figure = format!(
        "underlay_gateway_figure{{kind=\"gateway\",process=\"{}\",figure=\"journal_capacity_bytes\"}} 67108864",
        gateway.0.id()
    );
    wait_for("the gateway's figures", Duration::from_secs(60), || {
        assert!(!has_ended(&mut gateway.0), "the gateway has ended");
        get("/metrics").contains(&figure)
    });
    let page = {
        let cookie = crate::elsewhere::cookie(&url);
        request(&mut server.connect(), "GET /host HTTP/1.1", &server.host(), &[&cookie], "")
    };
    assert!(page.contains("not yet stored"), "{page}");
    let body = format!("process={}", gateway.0.id());
    let stopped =
        request(&mut own_socket(&playground, &url), "POST /host/stop HTTP/1.1", "localhost", &[], &body);
    assert!(stopped.starts_with("HTTP/1.1 200") && stopped.contains("the gateway of process"), "{stopped}");
    wait_for("the gateway to end", LIMIT, || has_ended(&mut gateway.0));
}
