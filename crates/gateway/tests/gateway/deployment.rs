//! What the gateway is installed by (the unit, the manifest) and what its pages say: both have to fit the program.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use underlay_gateway::config::GatewayConfig;

use crate::program::{Program, free};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text_of(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const UNIT: &str = "contrib/systemd/underlay-gateway.service";

/// The pages of the gateway, by name.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(repository().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("gateway") && name.ends_with(".md") {
            pages.push((name.clone(), text_of(&format!("docs/{name}"))));
        }
    }
    assert!(pages.len() > 3, "{pages:?}");
    pages
}

/// Fenced blocks of TOML.
fn toml_blocks(page: &str) -> Vec<String> {
    let after = page.split("```toml\n").skip(1);
    after.map(|rest| rest.split_once("\n```").expect("a block that ends").0.to_owned() + "\n").collect()
}

/// An example that begins with `listen` is a whole configuration, which somebody will copy.
#[test]
fn documented_configurations_are_valid() {
    let mut found = 0;
    for (name, page) in pages() {
        for block in toml_blocks(&page) {
            if !block.starts_with("listen =") {
                continue;
            }
            found += 1;
            let (_, notes) =
                GatewayConfig::parse_with_notes(&name, &block).unwrap_or_else(|error| panic!("{error}"));
            assert!(notes.is_empty(), "{notes}");
        }
    }
    assert!(found >= 2, "a minimal and a full one are missing");
}

/// The full example has each section, so that a key that is renamed is noticed.
#[test]
fn full_example_has_all_sections() {
    let page = text_of("docs/gateway-configuration.md");
    let full = toml_blocks(&page).into_iter().max_by_key(String::len).unwrap();
    for section in ["[tls]", "[local]", "[s3]", "[bucket.", "[[bucket.", "[key.", "[limits]", "[admin]"] {
        assert!(full.lines().any(|line| line.starts_with(section)), "{section}: {full}");
    }
}

fn metric_names(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next().map(str::to_owned))
        .collect()
}

/// Each metric has a row, and each row a metric. Those of a cluster are shown by a cluster alone.
#[test]
fn page_documents_all_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let program =
        Program::start(directory.path(), &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()));
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    let exported = metric_names(&program.ask("/metrics", &token).unwrap());
    assert!(exported.len() > 20, "{exported:?}");
    let page = text_of("docs/gateway-operations.md");
    let rows: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `underlay_gateway_")?.split_once('`').map(|(name, _)| name))
        .map(|name| format!("underlay_gateway_{name}"))
        .collect();
    let missing: Vec<_> = exported.difference(&rows).collect();
    assert!(missing.is_empty(), "docs/gateway-operations.md has no row for {missing:?}");
    let of_cluster = |name: &&String| name.starts_with("underlay_gateway_cluster_");
    let unknown: Vec<_> = rows.difference(&exported).filter(|name| !of_cluster(name)).collect();
    assert!(unknown.is_empty(), "docs/gateway-operations.md has rows for {unknown:?}, which nothing tells");
}

/// A request to the port for probes, as a kubelet sends it.
fn probe(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Probes and load balancers come from elsewhere. What they may know is whether, and nobody may shut them out.
#[test]
fn probes_from_elsewhere_are_answered_and_told_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let health = free();
    let sections = format!(
        "health_listen = \"{health}\"\n[key.more]\nid = \"MORE\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"lake\", may = [\"read\"] }}]\n[bucket.lake]\nstore = \"{}\"\n",
        objects.display()
    );
    let program = start_with_admin(directory.path(), &sections);
    for path in ["/health/live", "/health/ready"] {
        let answer = probe(health, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nyes\n"), "{path}: {answer}");
    }
    let token = program.token();
    for path in ["/metrics", "/status", "/", "/health/ready/x"] {
        let answer = probe(health, &format!("GET {path}?token={token}"));
        assert!(answer.starts_with("HTTP/1.1 404") && !answer.contains("lake"), "{path}: {answer}");
    }
    assert!(probe(health, "POST /health/live").starts_with("HTTP/1.1 405"));
    // Three times as many as there are places, which say nothing.
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(health).unwrap()).collect();
    assert!(probe(health, "GET /health/live").starts_with("HTTP/1.1 200"));
    drop(idle);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// Local users without the token can connect as well.
#[test]
fn admin_port_with_idle_connections_still_answers() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let sections = format!("[bucket.lake]\nstore = \"{}\"\n", objects.display());
    let program = Program::start(directory.path(), &sections);
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(program.admin).unwrap()).collect();
    assert!(probe(program.admin, "GET /health/live").starts_with("HTTP/1.1 200"));
    let header = format!("Authorization: Bearer {}\r\n", program.token());
    assert!(program.ask("/metrics", &header).unwrap().contains("underlay_gateway_"));
    drop(idle);
}

/// The first line of `sections` belongs to `[admin]`.
fn start_with_admin(directory: &Path, sections: &str) -> Program {
    let (of_admin, rest) = sections.split_once('\n').unwrap();
    let program = Program::start_without_waiting(directory, "", rest);
    let config = std::fs::read_to_string(program.config()).unwrap();
    let config = config.replace("[admin]\n", &format!("[admin]\n{of_admin}\n"));
    std::fs::write(program.config(), config).unwrap();
    let (path, address, admin) = (program.config().to_owned(), program.address, program.admin);
    drop(program);
    let mut program = Program::start_as_written(directory, &path, address, admin);
    program.wait_ready();
    program
}

/// What the unit has under this name; several lines count as one list.
fn directive(unit: &str, name: &str) -> Vec<String> {
    let values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// systemd's own opinion, where it is installed.
#[test]
fn systemd_has_nothing_to_say_against_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Where the program is here; the package has it elsewhere.
    let unit = text_of(UNIT).replace("/usr/bin/underlay-gateway", env!("CARGO_BIN_EXE_underlay-gateway"));
    let file = directory.path().join("underlay-gateway.service");
    std::fs::write(&file, unit).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = stderr.lines().filter(|line| line.contains("underlay-gateway")).collect();
    assert!(ours.is_empty(), "{stderr}");
}

/// The unit runs what the page shows: each path of the full example is one that the unit lets the gateway read or
/// write.
#[test]
fn systemd_unit_allows_paths_of_example() {
    let unit = text_of(UNIT);
    assert_eq!(directive(&unit, "User"), ["underlay-gateway"]);
    assert_eq!(
        directive(&unit, "ExecStart"),
        ["/usr/bin/underlay-gateway", "serve", "/etc/underlay/gateway.toml"]
    );
    assert_eq!(directive(&unit, "RestartPreventExitStatus"), ["2"]);
    let sysusers = text_of("contrib/sysusers.d/underlay-gateway.conf");
    assert!(sysusers.lines().any(|line| line.starts_with("u underlay-gateway ")), "{sysusers}");
    let mut writable: Vec<PathBuf> = directive(&unit, "ReadWritePaths")
        .iter()
        .map(|path| PathBuf::from(path.trim_start_matches('-')))
        .collect();
    writable.extend(directive(&unit, "StateDirectory").iter().map(|name| Path::new("/var/lib").join(name)));
    writable.extend(directive(&unit, "LogsDirectory").iter().map(|name| Path::new("/var/log").join(name)));
    let page = text_of("docs/gateway-configuration.md");
    let full = toml_blocks(&page).into_iter().max_by_key(String::len).unwrap();
    let config = GatewayConfig::parse("full", &full).unwrap();
    let mut written = vec![config.local.directory.clone()];
    written.extend(config.access_log.as_deref().and_then(Path::parent).map(Path::to_owned));
    let stores = config.buckets.iter().map(|bucket| &bucket.store);
    for store in stores.chain(config.new_buckets.as_ref().map(|new| &new.under)) {
        let place = PathBuf::from(store.to_string());
        written.extend(place.is_absolute().then_some(place));
    }
    for path in written {
        assert!(
            writable.iter().any(|root| path.starts_with(root)),
            "{} is not in {writable:?}",
            path.display()
        );
    }
}

/// The manifest's configuration is one, and its probes ask where the gateway answers them.
#[test]
fn manifest_configuration_fits_its_probes() {
    let manifest = text_of("deploy/kubernetes/gateway.yaml");
    let (_, rest) = manifest.split_once("  gateway.toml: |\n").expect("a ConfigMap with gateway.toml");
    let text: String = rest
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line)))
        .collect();
    let config = GatewayConfig::parse("gateway.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
    let health = config.admin.health.expect("probes come from the node");
    assert!(health.ip().is_unspecified());
    assert!(manifest.contains(&format!("containerPort: {}", health.port())), "{health}");
    assert!(manifest.contains(&format!("containerPort: {}", config.listen.port())), "{}", config.listen);
    for path in ["path: /health/live", "path: /health/ready"] {
        assert!(manifest.contains(path), "{path}");
    }
    for mounted in ["/var/lib/underlay-gateway", "/etc/underlay/gateway", "/etc/underlay/secrets"] {
        assert!(manifest.contains(&format!("mountPath: {mounted}\n")), "{mounted}");
    }
}
