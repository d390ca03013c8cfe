//! From nothing to a first object, and what stops a start: `init`, faults of the configuration and their exit codes,
//! and SIGHUP.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::clients::certificate;
use crate::program::{KEY, Program, SECRET, command, free};
use crate::signed::{Reply, ask, ask_as};

fn init(directory: &Path, more: &[&str]) -> Output {
    command().arg("init").arg(directory).args(more).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The two commands of the page's quick start.
#[test]
fn init_configuration_starts_and_stores_an_object() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("first gateway");
    let (address, admin) = (free(), free());
    let output = init(&home, &["--listen", &address.to_string(), "--admin", &admin.to_string()]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    let config = home.join("gateway.toml");
    // The next command, as a shell reads it, and a client's line.
    assert!(text.contains(&format!("underlay-gateway serve '{}'", config.display())), "{text}");
    assert!(text.contains(&format!("aws --endpoint-url http://{address} s3 cp")), "{text}");
    for (name, expected) in
        [("", 0o700), ("gateway.toml", 0o600), ("client.secret", 0o600), ("objects", 0o700)]
    {
        assert_eq!(mode(&home.join(name)), expected, "{name}");
    }
    let secret = std::fs::read_to_string(home.join("client.secret")).unwrap().trim().to_owned();
    assert!(secret.len() >= 40 && !text.contains(&secret), "{text}");
    let mut program = Program::start_as_written(&home, &config, address, admin);
    program.wait_ready();
    let stored = ask_as(("CLIENT", &secret), address, "PUT", "/lake/first", &[], b"bytes").unwrap();
    assert_eq!(stored.status, 200, "{}", stored.text());
    assert_eq!(ask_as(("CLIENT", &secret), address, "GET", "/lake/first", &[], b"").unwrap().body, b"bytes");
    // Nobody else's signature will do.
    assert_eq!(ask_as(("CLIENT", SECRET), address, "GET", "/lake/first", &[], b"").unwrap().status, 403);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
    assert_eq!(std::fs::read(home.join("objects/first")).unwrap(), b"bytes");
    let check = command().arg("check").arg(&config).output().unwrap();
    assert!(check.status.success(), "{}", said(&check));
}

#[test]
fn init_overwrites_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for file in ["gateway.toml", "client.secret", "objects", "local"] {
        let home = directory.path().join(file.replace('.', "-"));
        std::fs::create_dir(&home).unwrap();
        // A link counts, wherever it leads.
        std::os::unix::fs::symlink("/nowhere", home.join(file)).unwrap();
        let output = init(&home, &[]);
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains("is there already"), "{file}: {text}");
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1, "{file}");
    }
}

#[test]
fn init_takes_a_bucket_an_address_and_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("store.secret");
    std::fs::write(&secret, "minioadmin\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let home = directory.path().join("s3");
    let secret = secret.to_str().unwrap();
    let s3 = [
        "--bucket",
        "sea.two",
        "--store",
        "s3://company/sea",
        "--endpoint",
        "http://10.0.0.5:9000",
        "--region",
        "eu-1",
    ];
    let output =
        init(&home, &[&s3[..], &["--store-key-id", "minioadmin", "--store-secret-file", secret]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let text = std::fs::read_to_string(home.join("gateway.toml")).unwrap();
    let config = underlay_gateway::config::GatewayConfig::parse("gateway.toml", &text).unwrap();
    assert_eq!(config.buckets[0].name, "sea.two");
    assert_eq!(config.buckets[0].store.to_string(), "s3://company/sea");
    assert_eq!((config.s3.region.as_str(), config.s3.url.as_deref()), ("eu-1", Some("http://10.0.0.5:9000")));
    assert!(!text.contains("minioadmin\n") && !home.join("objects").exists(), "{text}");
    for (wishes, expected) in [
        (&["--bucket", "Lake"][..], "not a valid name of a bucket"),
        // As CreateBucket refuses them.
        (&["--bucket", "sthree-x"], "begin with sthree-"),
        (&["--bucket", "a--x-s3"], "end in --x-s3"),
        (&["--bucket", "a.-b"], "hyphen"),
        (&["--bucket", "a\"]\n[x"], "make no configuration"),
        (&["--admin", "10.0.0.1:9001"], "loopback"),
        (&["--store", "/not/there"], "--store /not/there"),
        (&["--store", "s3:/x"], "make no configuration"),
        (&["--endpoint", "http://10.0.0.5"], "are for --store s3://"),
        (&["--store", "s3://x", "--store-key-id", "ID"], "--store-secret-file"),
        (&["--listen", "localhost"], "--listen"),
        (&["--listen", "0.0.0.0:9001"], "are the same port, 9001"),
    ] {
        let refused = directory.path().join("refused");
        let output = init(&refused, wishes);
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains(expected), "{wishes:?}: {text}");
        assert!(!refused.exists(), "{wishes:?}");
    }
}

/// As on a full disk: no file gets more blocks of 512 bytes than these.
fn init_with_blocks(directory: &Path, blocks: u32) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    std::process::Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_underlay-gateway"), "init"])
        .arg(directory)
        .output()
        .unwrap()
}

/// Whatever can't be written, nothing stays that would be in the way of the next attempt.
#[test]
fn failed_init_leaves_nothing_and_can_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    // None at all for the secret, or too few for the configuration.
    for (blocks, name) in [(0, "client.secret"), (1, "gateway.toml")] {
        let home = directory.path().join(format!("new/{blocks}"));
        let output = init_with_blocks(&home, blocks);
        let text = said(&output);
        assert!(output.status.code() == Some(4) && text.contains(name), "{blocks}: {text}");
        assert!(!directory.path().join("new").exists(), "{blocks}: {text}");
        // A directory that was there stays, with what was in it.
        let home = directory.path().join(format!("old-{blocks}"));
        std::fs::create_dir(&home).unwrap();
        std::fs::write(home.join("notes"), "a").unwrap();
        assert_eq!(init_with_blocks(&home, blocks).status.code(), Some(4));
        let names: Vec<_> =
            std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["notes"], "{blocks}");
        let output = init(&home, &[]);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 4, "nothing unfinished is left");
    }
}

/// A restart does not help before somebody has changed something: the unit must not try forever.
#[test]
fn configuration_faults_exit_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let open = directory.path().join("open.secret");
    std::fs::write(&open, SECRET).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let short = directory.path().join("short.secret");
    std::fs::write(&short, "short").unwrap();
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
    let bucket = format!("[bucket.lake]\nstore = \"{}\"\n", objects.display());
    let key = |file: &Path| {
        format!(
            "[key.more]\nid = \"MORE\"\nsecret_file = \"{}\"\nallow = [{{ bucket = \"lake\", may = [\"read\"] }}]\n",
            file.display()
        )
    };
    let nowhere = directory.path().join("nowhere");
    for (lines, sections, expected) in [
        ("", key(&nowhere), "the secret of [key.more]"),
        ("", key(&open), "open to everybody"),
        ("", key(&short), "fewer than 16 characters"),
        ("", "[key.more]\nid = \"MORE\"\nsecret_env = \"NOBODY_SET_IT\"\nallow = [{ bucket = \"lake\", may = [\"read\"] }]\n".to_owned(), "NOBODY_SET_IT"),
        ("", format!("[tls]\ncertificate = \"{0}\"\nkey = \"{0}\"\n", nowhere.display()), "[tls]"),
        ("", format!("[s3]\nendpoint = \"https://10.0.0.5\"\nauthority = \"{}\"\n", nowhere.display()), "`authority` of [s3]"),
        ("", "[limits]\nconnections = 100000\nrequests = 10000\npatience = \"1 s\"\nflushes = 0\n".to_owned(), "flushes"),
        ("access_log = \"/nowhere/at/all.jsonl\"\n", String::new(), "the access log"),
        ("", "[new_buckets]\nstore = \"relative\"\n".to_owned(), "absolute path"),
    ] {
        let mut program = Program::start_without_waiting(directory.path(), lines, &format!("{bucket}{sections}"));
        let (status, log) = program.wait_end();
        assert!(status.code() == Some(2) && log.contains(expected), "{sections}: {status} {log}");
        std::fs::remove_file(directory.path().join("gateway.toml.log")).unwrap();
    }
    // And every other command that needs them.
    let program = Program::start_without_waiting(directory.path(), "", &format!("{bucket}{}", key(&nowhere)));
    let drain = command().arg("drain").arg(program.config()).env("GATEWAY_SECRET", SECRET).output().unwrap();
    assert_eq!(drain.status.code(), Some(2), "{}", said(&drain));
}

/// What is not there may have to be mounted; what is there and somebody else's stays so.
#[test]
fn unusable_directories_exit_with_2_and_missing_with_4() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("file"), "no directory").unwrap();
    std::fs::create_dir(place("open")).unwrap();
    std::fs::set_permissions(place("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
    for (name, code, expected) in [
        ("file", 2, "`store` of [bucket.lake]"),
        ("open", 2, "can be written to by everybody"),
        ("missing", 4, "is its file system mounted?"),
    ] {
        let bucket = format!("[bucket.lake]\nstore = \"{}\"\n", place(name).display());
        let mut program = Program::start_without_waiting(directory.path(), "", &bucket);
        let (status, log) = program.wait_end();
        assert!(status.code() == Some(code) && log.contains(expected), "{name}: {status} {log}");
        std::fs::remove_file(place("gateway.toml.log")).unwrap();
    }
    std::fs::remove_dir_all(place("local")).unwrap();
    std::fs::write(place("local"), "no directory").unwrap();
    std::fs::create_dir(place("objects")).unwrap();
    let bucket = format!("[bucket.lake]\nstore = \"{}\"\n", place("objects").display());
    let mut program = Program::start_without_waiting(directory.path(), "", &bucket);
    let (status, log) = program.wait_end();
    assert!(status.code() == Some(2) && log.contains("`directory` of [local]"), "{status} {log}");
}

/// Each was taken before, and failed later or held nothing.
#[test]
fn sizes_that_can_not_work_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("gateway.toml");
    let (local, objects) = (directory.path().join("local"), directory.path().join("objects"));
    std::fs::create_dir(&objects).unwrap();
    for (lines, expected) in [
        ("cache = \"100 PiB\"", "`cache` is"),
        ("memory = \"100 PiB\"", "`memory` and `metadata_memory` are"),
        ("cache = \"1 MiB\"", "expected at least \"64 MiB\""),
        ("cache = \"100 MiB\"\nblock = \"16 MiB\"", "expected at least \"256 MiB\""),
        ("memory = \"1 MiB\"", "expected at least \"4 MiB\""),
        ("journal = \"1 B\"", "expected at least \"1 MiB\""),
    ] {
        let text = format!(
            "listen = \"{}\"\n[local]\ndirectory = \"{}\"\n{lines}\n[bucket.lake]\nstore = \"{}\"\n[admin]\nlisten = \"{}\"\n\
             [key.test]\nid = \"{KEY}\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"lake\", may = [\"read\"] }}]\n",
            free(),
            local.display(),
            objects.display(),
            free()
        );
        std::fs::write(&config, text).unwrap();
        let output = command().arg("serve").arg(&config).env("GATEWAY_SECRET", SECRET).output().unwrap();
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains(expected), "{lines}: {text}");
        assert!(!local.exists(), "{lines}");
    }
}

/// The unit's limit is as much a mistake as the number of connections: only somebody who changes one of them helps.
#[test]
fn too_few_open_files_exit_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let bucket = format!("[bucket.lake]\nstore = \"{}\"\n", objects.display());
    let mut program = Program::start_without_waiting(directory.path(), "", &bucket);
    program.kill();
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 300; exec \"$0\" serve \"$1\"", env!("CARGO_BIN_EXE_underlay-gateway")])
        .arg(program.config())
        .env("GATEWAY_SECRET", SECRET)
        .output()
        .unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(2) && text.contains("[limits] connections"), "{text}");
    assert!(text.contains("this process may have 300"), "{text}");
}

/// A name that is misspelt in `allow` is no mistake where clients create buckets, and very likely one where they can't.
#[test]
fn suspicious_configuration_is_shown_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\n[key.more]\nid = \"MORE\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"lak\", may = [\"read\"] }}]\n",
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
    assert!(log.contains("no section [bucket.lak] here") && log.contains("without [new_buckets]"), "{log}");
}

/// MinIO's first secret has ten characters: how long the store's is, is the store's business.
#[test]
fn short_store_secret_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("store.secret");
    std::fs::write(&secret, "minioadmin").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let address = free();
    let sections = format!(
        "[s3]\nendpoint = \"http://{address}\"\nkey_id = \"minioadmin\"\nsecret_file = \"{}\"\n[bucket.lake]\nstore = \"s3://company\"\n",
        secret.display()
    );
    let mut program = Program::start_without_waiting(directory.path(), "", &sections);
    let (status, log) = program.wait_end();
    // It gets as far as the store, which nobody is.
    assert!(status.code() == Some(4) && !log.contains("fewer than"), "{status} {log}");
}

fn key_section(name: &str, id: &str, file: &Path, prefix: &str) -> String {
    format!(
        "[key.{name}]\nid = \"{id}\"\nsecret_file = \"{}\"\nallow = [{{ bucket = \"lake\", prefix = \"{prefix}\", may = [\"read\", \"write\"] }}]\n",
        file.display()
    )
}

/// Waits until the log has so many lines about SIGHUP.
fn wait_for_reloads(program: &Program, count: usize) -> String {
    let begun = Instant::now();
    loop {
        let log = std::fs::read_to_string(program.directory.join("gateway.toml.log")).unwrap();
        if log.matches("SIGHUP: loaded").count() + log.matches("SIGHUP: nothing is changed").count() >= count
        {
            return log;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is loaded: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lines follow their answers, in a thread of their own.
fn wait_for_lines(path: &Path, count: usize) {
    let begun = Instant::now();
    loop {
        let lines = std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
        if lines == count {
            return;
        }
        assert!(lines < count && begun.elapsed() < Duration::from_secs(60), "{lines} lines, not {count}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn sighup_loads_keys_and_opens_the_access_log_again() {
    let directory = tempfile::tempdir().unwrap();
    let (objects, log_file) = (directory.path().join("objects"), directory.path().join("access.jsonl"));
    std::fs::create_dir(&objects).unwrap();
    let secret = directory.path().join("more.secret");
    let write_secret = |text: &str| {
        std::fs::write(&secret, text).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write_secret("the-first-secret-of-it");
    let bucket = format!("[bucket.lake]\nstore = \"{}\"\n", objects.display());
    let lines = format!("access_log = \"{}\"\n", log_file.display());
    let mut program = Program::start_without_waiting(directory.path(), &lines, &bucket);
    program.wait_ready();
    let put = |(id, secret): (&str, &str), key: &str| -> Reply {
        ask_as((id, secret), program.address, "PUT", &format!("/lake/{key}"), &[], b"bytes").unwrap()
    };
    let first = "the-first-secret-of-it";
    assert_eq!(put(("MORE", first), "a").status, 403);

    let config = std::fs::read_to_string(program.config()).unwrap();
    let more = key_section("more", "MORE", &secret, "");
    std::fs::write(program.config(), format!("{config}{more}")).unwrap();
    wait_for_lines(&log_file, 1);
    std::fs::rename(&log_file, directory.path().join("access.1")).unwrap();
    program.reload();
    let log = wait_for_reloads(&program, 1);
    assert!(log.contains("new: MORE"), "{log}");
    assert_eq!(put(("MORE", first), "a").status, 200);
    // Another secret, fewer rights, and a bucket, which waits.
    write_secret("the-second-secret-of-it");
    let narrow = key_section("more", "MORE", &secret, "open/");
    std::fs::write(
        program.config(),
        format!("{config}{narrow}[new_buckets]\nstore = \"{}\"\n", directory.path().join("new").display()),
    )
    .unwrap();
    program.reload();
    let log = wait_for_reloads(&program, 2);
    assert!(log.contains("the changes in [new_buckets] need a restart"), "{log}");
    let second = "the-second-secret-of-it";
    assert_eq!(put(("MORE", first), "open/a").status, 403);
    assert_eq!(put(("MORE", second), "b").status, 403);
    assert_eq!(put(("MORE", second), "open/a").status, 200);
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().status, 200);
    // A key that is gone gets in no more.
    std::fs::write(program.config(), &config).unwrap();
    program.reload();
    let log = wait_for_reloads(&program, 3);
    assert!(log.contains("gone: MORE"), "{log}");
    assert_eq!(put(("MORE", second), "open/b").status, 403);
    // What came after the rotation is in the new file: the first request alone is in the old one.
    wait_for_lines(&log_file, 6);
    wait_for_lines(&directory.path().join("access.1"), 1);
    // Also where the configuration is faulty by then: what has moved the file away may compress it soon.
    std::fs::write(program.config(), "listen = ").unwrap();
    std::fs::rename(&log_file, directory.path().join("access.2")).unwrap();
    program.reload();
    wait_for_reloads(&program, 4);
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().status, 200);
    wait_for_lines(&log_file, 1);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// A faulty file must not take anything away from those who are served.
#[test]
fn sighup_with_faulty_file_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let program =
        Program::start(directory.path(), &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()));
    let config = std::fs::read_to_string(program.config()).unwrap();
    let nowhere = key_section("more", "MORE", &directory.path().join("nowhere"), "");
    let faulty = [
        "listen = ".to_owned(),
        config.replace("id = \"TESTKEY\"", "id = \"x\""),
        format!("{config}{nowhere}"),
    ];
    for (before, text) in faulty.iter().enumerate() {
        std::fs::write(program.config(), text).unwrap();
        program.reload();
        let log = wait_for_reloads(&program, before + 1);
        assert!(!log.contains("SIGHUP: loaded"), "{log}");
        let reply = ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let log = std::fs::read_to_string(directory.path().join("gateway.toml.log")).unwrap();
    assert!(log.contains("the secret of [key.more]") && log.contains("gateway.toml:1:"), "{log}");
    std::fs::remove_file(program.config()).unwrap();
    program.reload();
    wait_for_reloads(&program, faulty.len() + 1);
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().body, b"bytes");
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// The certificate that a client is shown now.
fn shown_certificate(program: &Program) -> Vec<u8> {
    use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
    let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
    builder.set_verify(SslVerifyMode::NONE);
    let stream = std::net::TcpStream::connect(program.address).unwrap();
    let stream = builder.build().connect("127.0.0.1", stream).unwrap();
    stream.ssl().peer_certificate().unwrap().to_der().unwrap()
}

#[test]
fn sighup_applies_renewed_certificate_and_ignores_faulty_one() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let (file, key) = certificate(directory.path());
    let der = || openssl::x509::X509::from_pem(&std::fs::read(&file).unwrap()).unwrap().to_der().unwrap();
    let sections = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n[bucket.lake]\nstore = \"{}\"\n",
        file.display(),
        key.display(),
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let first = der();
    assert!(shown_certificate(&program) == first);
    certificate(directory.path());
    let second = der();
    assert!(
        first != second && shown_certificate(&program) == first,
        "it is shown before anybody asked for it"
    );
    program.reload();
    wait_for_reloads(&program, 1);
    assert!(shown_certificate(&program) == second);
    // A key of another certificate, as in the middle of a renewal.
    let good_key = std::fs::read(&key).unwrap();
    let other = tempfile::tempdir().unwrap();
    std::fs::copy(certificate(other.path()).1, &key).unwrap();
    program.reload();
    let log = wait_for_reloads(&program, 2);
    assert!(log.contains("SIGHUP: nothing is changed") && log.contains("[tls]"), "{log}");
    assert!(shown_certificate(&program) == second);
    std::fs::write(&key, good_key).unwrap();
    program.reload();
    let log = wait_for_reloads(&program, 3);
    assert_eq!(log.matches("SIGHUP: loaded").count(), 2, "{log}");
}

/// An operator reads what is wrong in front, and neither the document nor what was signed.
#[test]
fn wrong_store_secret_is_reported_in_a_line() {
    let [inner, outer] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let objects = inner.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let store = Program::start(inner.path(), &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()));
    let secret = outer.path().join("store.secret");
    std::fs::write(&secret, "another-secret-than-that").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let sections = format!(
        "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n[bucket.lake]\nstore = \"s3://lake\"\n",
        store.address,
        secret.display()
    );
    let mut refused = Program::start_without_waiting(outer.path(), "", &sections);
    let (status, log) = refused.wait_end();
    assert_eq!(status.code(), Some(4), "{log}");
    assert!(log.contains("wrong `key_id` or secret in [s3]"), "{log}");
    assert!(!log.contains("<Error>") && !log.contains("<Code>"), "{log}");
}
