//! A client of S3 that is small enough to know what it does: one request a connection, signed, and no retries.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use crate::program::{KEY, SECRET};

/// That requests are signed for, unless it matters.
pub(crate) const REGION: &str = "us-east-1";

/// In the query of a presigned URL.
const ESCAPED_IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// An answer that came whole.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What is between the first tags of this name.
    pub(crate) fn tag(&self, name: &str) -> Option<String> {
        tags(&self.text(), name).into_iter().next()
    }

    /// The code of an error, as SDKs read it.
    pub(crate) fn code(&self) -> String {
        self.tag("Code").unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// What is between tags of this name, all of them.
pub(crate) fn tags(text: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    text.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0.to_owned())).collect()
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    hmac.update(text.as_bytes());
    hmac.finalize().into_bytes().to_vec()
}

/// A request whose head is signed, and what its chunks have to be signed with.
pub(crate) struct Signed {
    pub(crate) head: String,
    pub(crate) signature: String,
    date: String,
    scope: String,
    key: Vec<u8>,
}

impl Signed {
    /// Of a chunk (`PAYLOAD`) or the trailer (`TRAILER`), behind what has this signature.
    pub(crate) fn sign_next(&self, kind: &str, former: &str, bytes: &[u8]) -> String {
        let empty = match kind {
            "PAYLOAD" => format!("{}\n", hex(&Sha256::digest(b""))),
            _ => String::new(),
        };
        let text = format!(
            "AWS4-HMAC-SHA256-{kind}\n{}\n{}\n{former}\n{empty}{}",
            self.date,
            self.scope,
            hex(&Sha256::digest(bytes))
        );
        hex(&hmac(&self.key, &text))
    }
}

/// Signs the head of a request for a body of this length. `path` is the target's, unescaped but for slashes; the
/// query's parts are in order and have values. `hash` is the body's hash in the header.
pub(crate) fn sign(
    address: SocketAddr,
    asked: (&str, &str, &str),
    headers: &[(&str, &str)],
    hash: &str,
    length: u64,
) -> Signed {
    sign_for((&address.to_string(), REGION), asked, headers, hash, length)
}

/// The same for another host or region.
pub(crate) fn sign_for(
    place: (&str, &str),
    asked: (&str, &str, &str),
    headers: &[(&str, &str)],
    hash: &str,
    length: u64,
) -> Signed {
    sign_as((KEY, SECRET), place, asked, headers, hash, length)
}

fn sign_as(
    (id, secret): (&str, &str),
    (host, region): (&str, &str),
    (method, target, path): (&str, &str, &str),
    headers: &[(&str, &str)],
    hash: &str,
    length: u64,
) -> Signed {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let mut signed = vec![("host", host), ("x-amz-content-sha256", hash), ("x-amz-date", date.as_str())];
    signed.extend_from_slice(headers);
    signed.sort();
    let list: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let list = list.join(";");
    let canonical: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{path}\n{query}\n{canonical}\n{list}\n{hash}");
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(request.as_bytes())));
    let mut key = hmac(format!("AWS4{secret}").as_bytes(), &day);
    for part in [region, "s3", "aws4_request"] {
        key = hmac(&key, part);
    }
    let signature = hex(&hmac(&key, &text));
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in &signed {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!(
        "authorization: AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={list}, Signature={signature}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    ));
    Signed { head, signature, date, scope, key }
}

/// Fields that sign a form for this bucket with these conditions of its policy, besides those of the signature itself.
pub(crate) fn signed_form(bucket: &str, conditions: &[serde_json::Value]) -> Vec<(String, String)> {
    signed_form_for(REGION, bucket, conditions)
}

/// The same for a region.
pub(crate) fn signed_form_for(
    region: &str,
    bucket: &str,
    conditions: &[serde_json::Value],
) -> Vec<(String, String)> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let credential = format!("{KEY}/{day}/{region}/s3/aws4_request");
    let mut all = vec![
        serde_json::json!({"bucket": bucket}),
        serde_json::json!({"x-amz-algorithm": "AWS4-HMAC-SHA256"}),
        serde_json::json!({"x-amz-credential": credential}),
        serde_json::json!({"x-amz-date": date}),
    ];
    all.extend_from_slice(conditions);
    let policy = serde_json::json!({"expiration": "2100-01-01T00:00:00Z", "conditions": all}).to_string();
    let policy = STANDARD.encode(policy);
    let mut key = hmac(format!("AWS4{SECRET}").as_bytes(), &day);
    for part in [region, "s3", "aws4_request"] {
        key = hmac(&key, part);
    }
    let signature = hex(&hmac(&key, &policy));
    [
        ("policy", policy),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256".to_owned()),
        ("x-amz-credential", credential),
        ("x-amz-date", date),
        ("x-amz-signature", signature),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Asks for `target`: a path that needs no escapes, and a query whose parts are in order and have values.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    ask_as((KEY, SECRET), address, method, target, headers, body)
}

/// The same with another key.
pub(crate) fn ask_as(
    credentials: (&str, &str),
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let hash = hex(&Sha256::digest(body));
    let (sum, mut headers) = (STANDARD.encode(Sha256::digest(body)), headers.to_vec());
    let is_sum = |(name, _): &(&str, &str)| name.starts_with("x-amz-checksum-") || *name == "content-md5";
    if target.ends_with("?delete=") && !headers.iter().any(is_sum) {
        // As SDKs do, since S3 wants it.
        headers.push(("x-amz-checksum-sha256", &sum));
    }
    let signed = sign_as(
        credentials,
        (&address.to_string(), REGION),
        (method, target, path),
        &headers,
        &hash,
        body.len() as u64,
    );
    exchange(address, &signed.head, body)
}

/// The same with headers that the signature does not cover, which need not be as it has them.
pub(crate) fn ask_with(
    address: SocketAddr,
    method: &str,
    target: &str,
    unsigned: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    ask_for((address, &address.to_string()), method, target, &[], unsigned, body)
}

/// The same of a gateway that the client knows as `host`.
pub(crate) fn ask_for(
    (address, host): (SocketAddr, &str),
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    unsigned: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let hash = hex(&Sha256::digest(body));
    let signed = sign_for((host, REGION), (method, target, path), headers, &hash, body.len() as u64);
    let unsigned: String = unsigned.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = signed.head.replacen("connection: close\r\n", &format!("{unsigned}connection: close\r\n"), 1);
    exchange(address, &head, body).unwrap()
}

/// Asks by a presigned URL with these parameters besides those of its signature. `path` needs no escapes. The signature
/// covers `headers`.
pub(crate) fn ask_presigned(
    address: SocketAddr,
    (method, path): (&str, &str),
    parameters: &[(&str, &str)],
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let (host, scope) = (address.to_string(), format!("{day}/{REGION}/s3/aws4_request"));
    let credential = format!("{KEY}/{scope}");
    let mut signed = [&[("host", host.as_str())], headers].concat();
    signed.sort_unstable();
    let list: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let list = list.join(";");
    let of_signature = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", credential.as_str()),
        ("X-Amz-Date", date.as_str()),
        ("X-Amz-Expires", "60"),
        ("X-Amz-SignedHeaders", list.as_str()),
    ];
    let escaped = |text: &str| utf8_percent_encode(text, ESCAPED_IN_QUERY).to_string();
    let mut query: Vec<(String, String)> =
        of_signature.iter().chain(parameters).map(|(name, value)| (escaped(name), escaped(value))).collect();
    query.sort();
    let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = query.join("&");
    let canonical: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{path}\n{query}\n{canonical}\n{list}\nUNSIGNED-PAYLOAD");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(request.as_bytes())));
    let mut key = hmac(format!("AWS4{SECRET}").as_bytes(), &day);
    for part in [REGION, "s3", "aws4_request"] {
        key = hmac(&key, part);
    }
    let signature = hex(&hmac(&key, &text));
    let lines: String = signed.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "{method} {path}?{query}&X-Amz-Signature={signature} HTTP/1.1\r\n{lines}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    exchange(address, &head, body).unwrap()
}

/// Sends a request as it is, and takes the answer.
pub(crate) fn exchange(address: SocketAddr, head: &str, body: &[u8]) -> std::io::Result<Reply> {
    exchange_over(TcpStream::connect_timeout(&address, Duration::from_secs(2))?, head, body)
}

/// The same over a connection that is there.
pub(crate) fn exchange_over(mut stream: TcpStream, head: &str, body: &[u8]) -> std::io::Result<Reply> {
    stream.set_read_timeout(Some(Duration::from_secs(40)))?;
    stream.set_write_timeout(Some(Duration::from_secs(40)))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let is_head = head.starts_with("HEAD ");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let broken = || std::io::Error::other("the answer broke off");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(broken)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let mut reply = Reply { status, head, body: answer[end + 4..].to_vec() };
    if let Some(length) = reply.header("content-length").and_then(|length| length.parse::<usize>().ok())
        && !is_head
        && reply.body.len() != length
    {
        return Err(broken());
    }
    if reply.header("transfer-encoding").is_some() {
        reply.body = unchunked(&reply.body).ok_or_else(broken)?;
    }
    Ok(reply)
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if length == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length + 2..)?;
    }
}
