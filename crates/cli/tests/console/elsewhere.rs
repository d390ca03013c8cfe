//! The console for other hosts: TLS, a certificate on both sides, and the token as well.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::{X509, X509NameBuilder};

use crate::support::{NULL_STUDY, Playground, secret, wait_for};
use crate::{Running, console};

/// Where a console without TLS is.
pub(crate) struct Plain {
    host: String,
}

impl Plain {
    pub(crate) fn from_url(url: &str) -> Plain {
        let host = url.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        Plain { host: host.unwrap_or_else(|| panic!("{url}")).to_owned() }
    }

    pub(crate) fn host(&self) -> String {
        self.host.clone()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.host.rsplit_once(':').unwrap().1.parse().unwrap())
    }
}

/// The Unix socket of a console, for programs of its user.
pub(crate) fn own_socket(playground: &Playground, url: &str) -> UnixStream {
    let port =
        url.split('/').nth(2).and_then(|host| host.rsplit_once(':')).unwrap_or_else(|| panic!("{url}")).1;
    let stream =
        UnixStream::connect(playground.path("runtime").join(format!("console-{port}.socket"))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// The cookie that an address is exchanged for, as a header.
pub(crate) fn cookie(url: &str) -> String {
    let server = Plain::from_url(url);
    let path = url.splitn(4, '/').nth(3).unwrap();
    let opened = request(&mut server.connect(), &format!("GET /{path} HTTP/1.1"), &server.host(), &[], "");
    let line = opened.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    format!("Cookie: {}", line.unwrap_or_else(|| panic!("{opened}")).split(';').next().unwrap())
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// The answer to a request, or as much of it as came.
pub(crate) fn request(
    stream: &mut (impl Read + Write),
    line: &str,
    host: &str,
    headers: &[&str],
    body: &str,
) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let form = "Content-Type: application/x-www-form-urlencoded";
    let head = format!(
        "{line}\r\nHost: {host}\r\n{headers}{form}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).is_ok() {
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

type Identity = (X509, PKey<Private>);

/// An authority, or a certificate that it signed for 127.0.0.1.
fn certificate(issuer: Option<&Identity>, name: &str) -> Identity {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(issuer.map_or(&subject, |(authority, _)| authority.subject_name())).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    let extension = match issuer {
        None => BasicConstraints::new().critical().ca().build().unwrap(),
        Some((authority, _)) => {
            let context = builder.x509v3_context(Some(authority), None);
            SubjectAlternativeName::new().ip("127.0.0.1").build(&context).unwrap()
        }
    };
    builder.append_extension(extension).unwrap();
    builder.sign(issuer.map_or(&key, |(_, key)| key), MessageDigest::sha256()).unwrap();
    (builder.build(), key)
}

/// A handshake as a browser's that trusts `authority` and may show a certificate.
fn handshake(port: u16, authority: &Identity, own: Option<&Identity>) -> Option<SslStream<TcpStream>> {
    let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
    let mut store = X509StoreBuilder::new().unwrap();
    store.add_cert(authority.0.clone()).unwrap();
    builder.set_cert_store(store.build());
    builder.set_verify(SslVerifyMode::PEER);
    if let Some((certificate, key)) = own {
        builder.set_certificate(certificate).unwrap();
        builder.set_private_key(key).unwrap();
    }
    builder.build().connect("127.0.0.1", connect(port)).ok()
}

#[test]
fn remote_console_needs_certificate_and_token() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (ours, theirs) = (certificate(None, "ours"), certificate(None, "theirs"));
    let (server, browser, stranger) = (
        certificate(Some(&ours), "console"),
        certificate(Some(&ours), "me"),
        certificate(Some(&theirs), "stranger"),
    );
    let write = |name: &str, pem: Vec<u8>| secret(&playground, name, &String::from_utf8(pem).unwrap());
    write("authority.pem", ours.0.to_pem().unwrap());
    write("own.pem", server.0.to_pem().unwrap());
    write("own.key", server.1.private_key_to_pem_pkcs8().unwrap());
    playground.write("null.toml", NULL_STUDY);
    let mut arguments = vec!["--studies", "."];
    arguments.extend(["--authority", "authority.pem", "--certificate", "own.pem", "--key", "own.key"]);
    let (_console, url) = console(&playground, &arguments);
    let (place, entry) = url.split_once("?token=").unwrap();
    let host = place.strip_prefix("https://").unwrap_or_else(|| panic!("{url}")).trim_end_matches('/');
    let port: u16 = host.rsplit_once(':').unwrap().1.parse().unwrap();
    let ask = |own: Option<&Identity>, line: &str, headers: &[&str], body: &str| match handshake(
        port, &ours, own,
    ) {
        Some(mut stream) => request(&mut stream, line, host, headers, body),
        None => String::new(),
    };
    let open = format!("GET /?token={entry} HTTP/1.1");
    // A client without a certificate, with another authority's, or without TLS gets no HTTP, even with the right token.
    assert_eq!(ask(None, &open, &[], ""), "");
    assert_eq!(ask(Some(&stranger), &open, &[], ""), "");
    assert!(!request(&mut connect(port), &open, host, &[], "").contains("HTTP/1.1"));
    // The certificate alone opens nothing.
    assert!(ask(Some(&browser), "GET / HTTP/1.1", &[], "").starts_with("HTTP/1.1 401"));
    assert!(ask(Some(&browser), "GET /?token=wrong HTTP/1.1", &[], "").starts_with("HTTP/1.1 403"));
    let opened = ask(Some(&browser), &open, &[], "");
    let cookie = opened
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap_or_else(|| panic!("{opened}"));
    assert!(cookie.starts_with("__Host-") && cookie.contains("; Secure"), "{cookie}");
    let cookie = format!("Cookie: {}", cookie.split(';').next().unwrap());
    assert!(ask(Some(&browser), "GET / HTTP/1.1", &[&cookie], "").starts_with("HTTP/1.1 200"));
    // Once.
    assert!(ask(Some(&browser), &open, &[], "").starts_with("HTTP/1.1 403"));
    // A cookie that got away is nothing without a certificate, nor is a page of the same name without TLS one of ours.
    assert_eq!(ask(None, "GET / HTTP/1.1", &[&cookie], ""), "");
    // All else is right, so that the one is refused for its origin alone, and the other for what it asks.
    let page = ask(Some(&browser), "GET /studies/edit?file=null.toml HTTP/1.1", &[&cookie], "");
    let form = page.split_once(r#"name="form" value=""#).and_then(|(_, rest)| rest.split('"').next());
    let body = format!("form={}&process=1&confirmed=yes", form.unwrap_or_else(|| panic!("{page}")));
    for (origin, expected) in
        [(format!("Origin: http://{host}"), "403"), (format!("Origin: https://{host}"), "409")]
    {
        let answer = ask(Some(&browser), "POST /host/stop HTTP/1.1", &[&cookie, &origin], &body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
    }
    let rebound = match handshake(port, &ours, Some(&browser)) {
        Some(mut stream) => request(&mut stream, "GET / HTTP/1.1", "rebound.example", &[&cookie], ""),
        None => String::new(),
    };
    assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
}

#[test]
fn mistakes_with_certificates_are_told_before_it_listens() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let authority = certificate(None, "ours");
    let own = certificate(Some(&authority), "console");
    let write = |name: &str, pem: Vec<u8>| secret(&playground, name, &String::from_utf8(pem).unwrap());
    write("authority.pem", authority.0.to_pem().unwrap());
    write("own.pem", own.0.to_pem().unwrap());
    write("own.key", own.1.private_key_to_pem_pkcs8().unwrap());
    write("other.key", authority.1.private_key_to_pem_pkcs8().unwrap());
    let refused = |arguments: &str, expected: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        // One that listens all the same is not waited for.
        let mut command = playground.underlay(&arguments);
        let mut console = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map(Running).unwrap();
        wait_for("the console to refuse", Duration::from_secs(60), || {
            console.0.try_wait().unwrap().is_some()
        });
        let mut message = String::new();
        console.0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let code = console.0.wait().unwrap().code();
        assert!(code == Some(2) && message.contains(expected), "{arguments:?}: {message}");
    };
    let options = "--authority authority.pem --certificate own.pem";
    refused("console runs --listen 0.0.0.0:0", "--authority");
    refused(&format!("console runs --listen 127.0.0.1:0 {options} --key other.key"), "own.pem");
    refused(&format!("console runs --listen 127.0.0.1:0 {options} --key none.key"), "none.key");
    refused(&format!("console runs --listen 127.0.0.1:0 {options}"), "--key");
    // Which of its names others use, nobody can know.
    refused(&format!("console runs --listen 0.0.0.0:0 {options} --key own.key"), "--name");
}
