//! A cluster that runs already, asks for a password and encrypts: what a node of ours left is started once more by
//! hand.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::BigNum;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkcs12::Pkcs12;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Name, X509NameRef};
use underlay_systems::cassandra::Cassandra;
use underlay_systems::child::ChildProcess;
use underlay_systems::system::{SystemError, SystemResources};
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

use crate::{join_by, whole_record};

const START_LIMIT: Duration = Duration::from_secs(240);
const INCORRECT: &str = "and/or password are incorrect";
const KEYSTORE_PASSWORD: &str = "keystore";

/// The one that Cassandra begins with.
const KNOWN_USER: Cassandra = Cassandra::with_variables(|_| Some("cassandra".to_owned()));
const WRONG_PASSWORD: Cassandra = Cassandra::with_variables(|name| {
    Some(if name.ends_with("USERNAME") { "cassandra" } else { "x" }.to_owned())
});
const NO_USER: Cassandra = Cassandra::with_variables(|_| None);
const HALF_A_USER: Cassandra =
    Cassandra::with_variables(|name| name.ends_with("USERNAME").then(|| "cassandra".to_owned()));

pub(crate) fn with_passwords_and_encryption(directory: &Path) {
    let scratch = directory.join("scratch");
    let node = std::fs::read_dir(&scratch).unwrap().next().unwrap().unwrap().path().join("node1");
    let yaml = std::fs::read_to_string(node.join("cassandra.yaml")).unwrap();
    let value = |key: &str| {
        let line = yaml.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).unwrap();
        line.trim_matches('"').to_owned()
    };
    let ip: IpAddr = value("rpc_address").parse().unwrap();
    let authority = Authority::new("ours");
    let (ours, strange) = (directory.join("ours.pem"), directory.join("strange.pem"));
    std::fs::write(&ours, authority.certificate.to_pem().unwrap()).unwrap();
    std::fs::write(&strange, Authority::new("strange").certificate.to_pem().unwrap()).unwrap();
    let keystore = directory.join("keystore.p12");
    std::fs::write(&keystore, authority.keystore_for(ip)).unwrap();

    // Another cluster may have the address at its usual ports by now.
    let both = [0, 0].map(|port| TcpListener::bind((ip, port)).unwrap());
    let [native, storage] = both.map(|listener| listener.local_addr().unwrap());
    let mut secured = yaml.replace(&format!("{ip}:{}", value("storage_port")), &storage.to_string());
    for (key, port) in [("native_transport_port", native.port()), ("storage_port", storage.port())] {
        secured = secured.replace(&format!("\n{key}: {}\n", value(key)), &format!("\n{key}: {port}\n"));
    }
    let _ = write!(
        secured,
        "authenticator: PasswordAuthenticator\nauthorizer: CassandraAuthorizer\nclient_encryption_options: \
         {{enabled: true, optional: false, keystore: {keystore:?}, keystore_password: {KEYSTORE_PASSWORD}, \
         store_type: PKCS12}}\n"
    );
    std::fs::write(node.join("cassandra.yaml"), secured).unwrap();
    let _server = started(&node, native);
    let address = native.to_string();
    let pem = |path: &PathBuf| path.display().to_string();
    let (ours, strange) = (pem(&ours), pem(&strange));
    let settings = |ca| [("compaction", "UCS"), ("tls_ca", ca)];

    let begun = Instant::now();
    let joined = loop {
        match join_by(&KNOWN_USER, &address, &settings(&ours)) {
            Ok(joined) => break joined,
            // It takes clients before it has made its user.
            Err(error) => {
                assert!(begun.elapsed() < START_LIMIT && error.to_string().contains(INCORRECT), "{error}")
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    joined.health().unwrap();
    let mut client = joined.connect().unwrap();
    assert_eq!(client.insert(b"secured", &whole_record("secured")), Ok(OperationOutcome::Found));
    let mut values = FieldValues::default();
    assert_eq!(client.read(b"secured", FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
    assert_eq!(values, whole_record("secured"));
    drop(client);
    joined.stop().unwrap();

    let refused = |system: &Cassandra, address: &str, pairs: &[(&str, &str)]| {
        join_by(system, address, pairs).err().unwrap()
    };
    let relayed = relay(native).to_string();
    for (error, reason) in [
        (refused(&KNOWN_USER, &address, &settings(&strange)), "must come from"),
        (refused(&KNOWN_USER, &relayed, &settings(&ours)), "must name the address"),
        (refused(&KNOWN_USER, &address, &[("compaction", "UCS")]), "can't connect"),
        (refused(&WRONG_PASSWORD, &address, &settings(&ours)), INCORRECT),
        (refused(&NO_USER, &address, &settings(&ours)), "CASSANDRA_USERNAME"),
    ] {
        let error = error.to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    let error = refused(&HALF_A_USER, &address, &settings(&ours));
    assert!(
        matches!(&error, SystemError::Missing { missing, .. } if missing.ends_with("PASSWORD")),
        "{error}"
    );
}

/// Starts the node whose files are in `node`, and waits until it takes clients.
fn started(node: &Path, native: SocketAddr) -> ChildProcess {
    let java = std::env::var("JAVA_HOME").map_or("java".into(), |home| Path::new(&home).join("bin/java"));
    let mut command = Command::new(java);
    // The user that it begins with is made soon and not after ten seconds.
    command.arg("-Dcassandra.superuser_setup_delay_ms=0");
    command.arg(format!("@{}", node.join("java.arguments").display())).current_dir(node);
    let log = node.join("secured.log");
    let resources = SystemResources::unlimited();
    let child = ChildProcess::spawn("cassandra", command, &log, &resources).unwrap();
    let begun = Instant::now();
    while TcpStream::connect(native).is_err() {
        let tail = child.state().log_tail().unwrap_or_default();
        assert!(child.state().is_running() && begun.elapsed() < START_LIMIT, "{tail}");
        std::thread::sleep(Duration::from_millis(100));
    }
    child
}

/// The same server at an address that its certificate does not name.
fn relay(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.99.99:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                // It ends with either side.
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    address
}

/// Signs the nodes' certificates.
struct Authority {
    key: PKey<Private>,
    certificate: X509,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = key();
        let subject = named(name);
        let mut builder = unsigned(&key, &subject, &subject);
        builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        Authority { key, certificate: builder.build() }
    }

    /// A key with a certificate for `ip`, as Java reads it.
    fn keystore_for(&self, ip: IpAddr) -> Vec<u8> {
        let key = key();
        let mut builder = unsigned(&key, &named("node"), self.certificate.subject_name());
        let context = builder.x509v3_context(Some(&self.certificate), None);
        let names = SubjectAlternativeName::new().ip(&ip.to_string()).build(&context).unwrap();
        builder.append_extension(names).unwrap();
        builder.sign(&self.key, MessageDigest::sha256()).unwrap();
        let mut keystore = Pkcs12::builder();
        keystore.name("node").pkey(&key).cert(&builder.build());
        keystore.build2(KEYSTORE_PASSWORD).unwrap().to_der().unwrap()
    }
}

fn key() -> PKey<Private> {
    PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()
}

fn named(name: &str) -> X509Name {
    let mut builder = X509Name::builder().unwrap();
    builder.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    builder.build()
}

fn unsigned(key: &PKey<Private>, subject: &X509NameRef, issuer: &X509NameRef) -> openssl::x509::X509Builder {
    let mut builder = X509::builder().unwrap();
    let mut serial = BigNum::new().unwrap();
    serial.rand(127, openssl::bn::MsbOption::MAYBE_ZERO, false).unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&Asn1Integer::from_bn(&serial).unwrap()).unwrap();
    builder.set_subject_name(subject).unwrap();
    builder.set_issuer_name(issuer).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    builder
}
