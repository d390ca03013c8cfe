//! What Maven may when root fetches programs by it: scripts called `mvn` say what they see and try what they should
//! not.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use underlay_systems::artifacts::ArtifactList;

/// `abc`.
const LIST: ArtifactList = ArtifactList {
    name: "abc",
    pom: "<project/>",
    locked: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 abc.jar\n",
};
/// Where the test that is run as a process of its own has its cache.
const CACHE: &str = "UNDERLAY_TEST_FETCHES_INTO";
const OUTPUT: &str = r#"for word; do case "$word" in -DoutputDirectory=*) out=${word#*=};; -Dmaven.repo.local=*) repository=${word#*=};; esac; done"#;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "CI must run these tests as root");
    if !root {
        eprintln!("NOT RUN: this test fetches as root");
    }
    root
}

/// A host with a `mvn` of ours: in `/var/tmp`, since Maven gets a `/tmp` of its own.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new(script: &str) -> Host {
        let folder = tempfile::Builder::new().prefix("underlay-test-").tempdir_in("/var/tmp").unwrap();
        let host = Host { folder };
        host.open("", 0o755);
        std::fs::create_dir(host.path("bin")).unwrap();
        host.open("bin", 0o755);
        std::fs::create_dir_all(host.path("home/.m2")).unwrap();
        host.open("home", 0o700);
        std::fs::write(host.path("bin/mvn"), format!("#!/bin/sh\n{OUTPUT}\n{script}\n")).unwrap();
        host.open("bin/mvn", 0o755);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Fetches in a process with an environment of its own, and gives what it says.
    fn fetch(&self, variables: &[(&str, &str)]) -> Result<String, String> {
        self.fetch_by(Command::new(std::env::current_exe().unwrap()), variables)
    }

    fn fetch_by(&self, mut command: Command, variables: &[(&str, &str)]) -> Result<String, String> {
        command.args(["--exact", "fetch_in_own_process", "--ignored", "--nocapture"]);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("bin").display());
        // The cache is where only root gets to.
        command.env(CACHE, self.path("home")).env("PATH", path).env("HOME", self.path("home"));
        command.env_remove("MAVEN_OPTS").env_remove("JAVA_HOME").env("SECRET_OF_ROOT", "hunter2");
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(text + &String::from_utf8_lossy(&output.stderr))
    }

    fn fetched(&self) -> PathBuf {
        let folder = std::fs::read_dir(self.path("home/artifacts")).unwrap();
        let places = folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let places: Vec<PathBuf> = places.collect();
        let [place] = places.as_slice() else { panic!("{places:?}") };
        place.join("abc.jar")
    }

    /// Nothing but the lock may be left of a fetch that failed.
    fn assert_nothing_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("home/artifacts")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
#[ignore = "the other tests run it"]
fn fetch_in_own_process() {
    let Some(cache) = std::env::var_os(CACHE) else { return };
    if let Err(error) = LIST.directory_in(Path::new(&cache), &|progress| println!("{}", progress.what)) {
        panic!("{error}");
    }
}

#[test]
fn maven_has_no_rights_and_knows_no_secrets() {
    if !is_root() {
        return;
    }
    let checks = r#"
        fail() { echo "[ERROR] $1"; exit 1; }
        [ "$(id -u) $(id -G)" = "65534 65534" ] || fail "user $(id)"
        env | grep -q hunter && fail "it knows a secret: $(env)"
        [ "$PROXY_WORD $https_proxy $LANG" = "needed http://proxy:3128 C.UTF-8" ] || fail "it lacks a variable: $(env)"
        case "$MAVEN_OPTS" in "-Xmx99m -Duser.home=$HOME -Djava.io.tmpdir=/tmp"*) ;; *) fail "$MAVEN_OPTS";; esac
        [ "$(cat "$HOME/.m2/settings.xml")" = '<s>${env.PROXY_WORD}</s>' ] || fail "no settings"
        [ "$(stat -c '%U %a' "$HOME/.m2/settings.xml")" = "nobody 600" ] || fail "open settings"
        ls -A /tmp | grep -q underlay-neighbour && fail "the /tmp of others: $(ls /tmp)"
        touch /tmp/mine || fail "nothing can be written to /tmp"
        grep -q 'NoNewPrivs:.*1' /proc/self/status || fail "new privileges"
        grep -q 'CapEff:.*0000000000000000' /proc/self/status || fail "capabilities"
        (: </dev/tty) 2>/dev/null && fail "it has a terminal"
        [ $$ = 1 ] || fail "it sees other processes: $$"
        printf abc >"$out/abc.jar"; mkdir -p "$repository/x"; exit 0"#;
    let host = Host::new(checks);
    std::fs::write(host.path("home/.m2/settings.xml"), "<s>${env.PROXY_WORD}</s>").unwrap();
    host.open("home/.m2/settings.xml", 0o600);
    // Somebody else's, which it must not see.
    let neighbour = tempfile::Builder::new().prefix("underlay-neighbour-").tempdir_in("/tmp").unwrap();
    let variables = [
        ("PROXY_WORD", "needed"),
        ("https_proxy", "http://proxy:3128"),
        ("CASSANDRA_PASSWORD", "hunter3"),
        ("MAVEN_OPTS", "-Xmx99m"),
        ("LANG", "C.UTF-8"),
    ];
    assert!(host.fetch(&variables).unwrap().contains("fetching abc, 1 files as nobody"));
    let fetched = std::fs::metadata(host.fetched()).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fetched), 0);
    assert_eq!(std::fs::read(host.fetched()).unwrap(), b"abc");
    drop(neighbour);
}

/// As in most containers.
#[test]
fn without_namespaces_maven_has_a_private_folder() {
    let limits = ["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    let works =
        || Command::new("setpriv").args(limits).arg("true").status().is_ok_and(|status| status.success());
    if !is_root() || !works() {
        return;
    }
    let checks = r#"
        fail() { echo "[ERROR] $1"; exit 1; }
        [ "$(id -u) $(id -G)" = "65534 65534" ] || fail "user $(id)"
        env | grep -q hunter && fail "it knows a secret: $(env)"
        case "$HOME" in /tmp/underlay-fleeting-*/room/home) ;; *) fail "$HOME";; esac
        [ "$MAVEN_OPTS" = "-Duser.home=$HOME -Djava.io.tmpdir=${HOME%/home}" ] || fail "$MAVEN_OPTS"
        [ "$(stat -c '%U %a' "${HOME%/home}")" = "nobody 700" ] || fail "an open folder"
        [ "$(stat -c '%U %a' "${HOME%/room/home}")" = "root 711" ] || fail "a folder that can be exchanged"
        sleep 7654322 & printf abc >"$out/abc.jar""#;
    let host = Host::new(checks);
    let mut command = Command::new("setpriv");
    command.args(limits).arg(std::env::current_exe().unwrap());
    assert!(host.fetch_by(command, &[]).unwrap().contains("without namespaces"));
    assert_eq!(std::fs::read(host.fetched()).unwrap(), b"abc");
    until_ended("7654322");
}

#[test]
fn files_planted_by_maven_are_ignored() {
    if !is_root() {
        return;
    }
    let secret = tempfile::Builder::new().prefix("underlay-test-").tempdir_in("/var/tmp").unwrap();
    let victim = secret.path().join("victim");
    std::fs::write(&victim, "abc").unwrap();
    let link = format!("ln -s {} $out/abc.jar", victim.display());
    let folder = format!("rmdir $out; ln -s {} $out", secret.path().display());
    for (script, words) in [
        (link.as_str(), "abc.jar is a link"),
        (folder.as_str(), "files can't be read"),
        ("mkfifo $out/abc.jar", "is not a regular file"),
        ("mkdir $out/abc.jar", "is not a regular file"),
        ("printf abcd >$out/abc.jar", "has more than 3 bytes"),
        ("printf abd >$out/abc.jar", "has another SHA-256"),
        ("printf abc >$out/abc.jar; touch $out/more.jar", "is not on the list"),
        ("exit 0", "abc.jar can't be read"),
    ] {
        let host = Host::new(script);
        let message = host.fetch(&[]).unwrap_err();
        assert!(message.contains(words), "{script}: {message}");
        host.assert_nothing_left();
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"abc");
}

#[test]
fn maven_children_end_with_it() {
    if !is_root() {
        return;
    }
    let host = Host::new("setsid sleep 7654321 & sleep 7654321 & printf abc >$out/abc.jar");
    host.fetch(&[]).unwrap();
    until_ended("7654321");
}

/// Waits until nobody sleeps for so many seconds.
fn until_ended(seconds: &str) {
    let sleeps = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
        lines.filter(|line| line.starts_with(format!("sleep\0{seconds}").as_bytes())).count()
    };
    let begun = Instant::now();
    while sleeps() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} are left", sleeps());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn root_only_maven_is_reported_with_remedy() {
    if !is_root() {
        return;
    }
    let host = Host::new("printf abc >$out/abc.jar; id -u >&2");
    host.open("bin", 0o700);
    let only = host.path("bin").display().to_string();
    let path = ("PATH", only.as_str());
    let message = host.fetch(&[path]).unwrap_err();
    let mut expected = String::new();
    let _ = write!(expected, "{} is not open to others", host.path("bin").display());
    for words in [expected.as_str(), "UNDERLAY_FETCH_AS_ROOT=1", "apt install maven"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let wide = format!("{only}:/usr/bin:/bin");
    // As before, and only when it is asked for.
    std::fs::set_permissions(host.path("bin/mvn"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let message = host.fetch(&[("PATH", &wide), ("UNDERLAY_FETCH_AS_ROOT", "1")]).unwrap();
    assert!(message.contains("fetching abc, 1 files as root"), "{message}");
    assert_eq!(std::fs::read(host.fetched()).unwrap(), b"abc");
}
