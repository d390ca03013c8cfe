//! YCSB's own client, run with the binding that prints what it is asked for.

use std::process::{Command, Stdio};

use underlay_systems::artifacts::YCSB;
use underlay_systems::java::{ClassPath, Java};

/// One operation that a generator asked for, as YCSB's `basic` binding prints it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    /// `READ`, `UPDATE`, `INSERT` or `SCAN`.
    pub kind: &'static str,
    pub key: String,
    /// How many records a scan asks for; 0 for all else.
    pub scan_length: u32,
    /// The field that an update of one field writes, and a read of one field reads.
    pub field: Option<String>,
}

/// What YCSB asks for under these properties. `phase` is `-load` or `-t`.
pub(crate) fn asked(phase: &str, properties: &[String]) -> Vec<Asked> {
    let text = printed(phase, properties);
    let asked: Vec<Asked> = text.lines().filter_map(parse).collect();
    assert!(!asked.is_empty(), "YCSB asked for nothing: {text}");
    asked
}

/// What YCSB prints on standard output.
pub(crate) fn printed(phase: &str, properties: &[String]) -> String {
    let java = Java::find("ycsb").unwrap_or_else(|error| panic!("{error}"));
    let jars = YCSB.directory(&|_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut command = Command::new(java.program);
    // It lives for a second: what counts is that it starts soon.
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
    command.arg(ClassPath::new().with_jars(jars).to_argument()).args(["site.ycsb.Client", phase]);
    command.args(["-p", "workload=site.ycsb.workloads.CoreWorkload", "-p", "db=site.ycsb.BasicDB"]);
    for property in properties {
        command.args(["-p", property]);
    }
    let output = command.stdin(Stdio::null()).output().expect("java starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "YCSB failed: {message}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn parse(line: &str) -> Option<Asked> {
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "READ" => "READ",
        "UPDATE" => "UPDATE",
        "INSERT" => "INSERT",
        "SCAN" => "SCAN",
        _ => return None,
    };
    if words.next()? != "usertable" {
        return None;
    }
    let key = words.next()?.to_owned();
    let scan_length = if kind == "SCAN" { words.next()?.parse().ok()? } else { 0 };
    let field = match (words.next()?, words.next()?) {
        ("[", "<all") => None,
        ("[", text) if kind != "INSERT" => text.split('=').next().map(str::to_owned),
        _ => None,
    };
    Some(Asked { kind, key, scan_length, field })
}

#[test]
fn lines_of_the_basic_binding_are_understood() {
    let asked = |kind, key: &str, scan_length, field: Option<&str>| Asked {
        kind,
        key: key.to_owned(),
        scan_length,
        field: field.map(str::to_owned),
    };
    assert_eq!(parse("READ usertable user17 [ <all fields>]"), Some(asked("READ", "user17", 0, None)));
    assert_eq!(parse("READ usertable user1 [ field3 ]"), Some(asked("READ", "user1", 0, Some("field3"))));
    assert_eq!(
        parse("UPDATE usertable user9 [ field4== ] x ]"),
        Some(asked("UPDATE", "user9", 0, Some("field4")))
    );
    assert_eq!(parse("SCAN usertable user2 57 [ <all fields>]"), Some(asked("SCAN", "user2", 57, None)));
    assert_eq!(
        parse("INSERT usertable user3 [ field0=a field1=b ]"),
        Some(asked("INSERT", "user3", 0, None))
    );
    for line in ["[READ], Operations, 5", "\"db\"=\"x\"", "READ elsewhere user1 [ <all fields>]", "READ"] {
        assert_eq!(parse(line), None, "{line}");
    }
}
