//! Whole requests: signed, and answered by a gateway over a store in memory.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base16ct::lower::encode_string as hex;
use hmac::{Hmac, KeyInit as _, Mac as _};
use object_store::memory::InMemory;
use reqwest::Url;
use sha2::{Digest as _, Sha256};

use crate::config::{
    AccessKey, BucketConfig, KeyGrant, LocalConfig, PrefixRule, SecretPlace, StoreConsistency, StorePlace,
    WriteMode,
};
use crate::engine::{EngineSetup, GatewayEngine};
use crate::s3::KeyPermissions;
use crate::serving::OverPipe;
use crate::store::{BackendKind, StoreBackend};
use crate::url_escapes;

const ID: &str = "KEY";
const SECRET: &str = "a secret of the fuzzer";
const BUCKET: &str = "lake";
/// Sent requests have their own values of these, which give their length and their owner.
const OURS: [&str; 8] = [
    "host",
    "x-amz-date",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "authorization",
    "upgrade",
];

/// See the module.
pub struct GatewayClient {
    runtime: tokio::runtime::Runtime,
    pipe: OverPipe,
}

impl GatewayClient {
    /// Opens one with its local directory there.
    ///
    /// # Errors
    /// When it can't be.
    pub fn open(directory: &Path) -> Result<GatewayClient, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let backend = StoreBackend::new(Arc::new(InMemory::new()), BackendKind::S3);
        let rule =
            |prefix: &str, write, consistency| PrefixRule { prefix: prefix.to_owned(), write, consistency };
        let setup = EngineSetup {
            local: LocalConfig {
                directory: directory.to_owned(),
                journal_bytes: 64 << 20,
                memory_bytes: 8 << 20,
                flash_bytes: 0,
                block_bytes: 64 << 10,
                metadata_bytes: 8 << 20,
                encryption: None,
            },
            // Short, as the fuzzer waits whenever a request does.
            patience: Duration::from_millis(50),
            flushes: 2,
            uploads_expire: Duration::from_secs(5),
            buckets: vec![BucketConfig {
                name: BUCKET.to_owned(),
                store: StorePlace::Directory("/the/store/of/the/fuzzer".into()),
                rules: vec![
                    // One rule of each kind: keys that others write as well go through other parts of the engine.
                    rule("shared/", WriteMode::Through, StoreConsistency::Revalidate),
                    rule("", WriteMode::Back { after: Duration::ZERO }, StoreConsistency::Exclusive),
                ],
            }],
            new_buckets: None,
            open_store: Box::new(move |_| Ok(backend.clone())),
            create_place: Box::new(|_, _| Err("not here".to_owned())),
            sharing: None,
            alone: None,
            at_rest: None,
            into_empty: Vec::new(),
        };
        let grant = KeyGrant { bucket: None, prefix: String::new(), read: true, write: true };
        let place = SecretPlace::Environment(String::new());
        let key = AccessKey { name: "a".to_owned(), id: ID.to_owned(), secret: place, grants: vec![grant] };
        let secrets = HashMap::from([(ID.to_owned(), SECRET.to_owned())]);
        let permissions = Arc::new(KeyPermissions::new(&[key], &secrets));
        let engine = runtime.block_on(GatewayEngine::open(setup))?;
        let pipe = OverPipe::new(engine, permissions)?;
        Ok(GatewayClient { runtime, pipe })
    }

    /// Takes a method and a target, behind them a header a line, and behind an empty line a body; signs that, unless it
    /// begins with a space, and returns the answer. Nothing for what is no request at all.
    pub fn ask(&self, data: &[u8]) -> Option<Vec<u8>> {
        let (data, is_signed) = match data {
            [b' ', rest @ ..] => (rest, false),
            _ => (data, true),
        };
        let end = data.windows(2).position(|pair| pair == b"\n\n");
        let (head, body) = end.map_or((data, &b""[..]), |end| (&data[..end], &data[end + 2..]));
        let mut lines = std::str::from_utf8(head).ok()?.lines();
        let (method, target) = lines.next()?.split_once(' ')?;
        let mut headers = BTreeMap::new();
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let name = name.trim().to_ascii_lowercase();
            if !OURS.contains(&name.as_str()) {
                headers.insert(name, value.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        headers.insert("host".to_owned(), "gateway".to_owned());
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        if is_signed {
            let proof = sign(method, target, &mut headers)?;
            request.push_str(&format!("authorization: {proof}\r\n"));
        }
        for (name, value) in &headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
        let request = [request.as_bytes(), body].concat();
        Some(self.runtime.block_on(self.pipe.exchange(&request)))
    }
}

/// Adds what a signature of version 4 needs, and returns the header with it.
fn sign(method: &str, target: &str, headers: &mut BTreeMap<String, String>) -> Option<String> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    headers.insert("x-amz-date".to_owned(), date.clone());
    let hash =
        headers.entry("x-amz-content-sha256".to_owned()).or_insert_with(|| "UNSIGNED-PAYLOAD".to_owned());
    let hash = hash.clone();
    let url =
        Url::parse(&format!("http://gateway/?{}", target.split_once('?').map_or("", |(_, query)| query)))
            .ok()?;
    let mut pairs: Vec<(String, String)> = url
        .query_pairs()
        .map(|(name, value)| (url_escapes::escape_in_query(&name), url_escapes::escape_in_query(&value)))
        .collect();
    pairs.sort();
    let query: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let path = url_escapes::escape_in_path(&url_escapes::decode(
        target.split_once('?').map_or(target, |(path, _)| path),
    ));
    let names: Vec<&str> = headers.keys().map(String::as_str).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{path}\n{}\n{lines}\n{names}\n{hash}", query.join("&"));
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(request.as_bytes())));
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in [day.as_str(), "us-east-1", "s3", "aws4_request", &text] {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
        hmac.update(part.as_bytes());
        key = hmac.finalize().into_bytes().to_vec();
    }
    let signature = hex(&key);
    Some(format!("AWS4-HMAC-SHA256 Credential={ID}/{scope}, SignedHeaders={names}, Signature={signature}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(answer: Option<Vec<u8>>) -> u16 {
        let text = String::from_utf8_lossy(&answer.unwrap()).into_owned();
        text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    /// As the fuzzer does it: what it finds becomes a line here.
    #[test]
    fn requests_are_signed_and_answered() {
        let directory = tempfile::tempdir().unwrap();
        let gateway = GatewayClient::open(&directory.path().join("local")).unwrap();
        for (request, expected) in [
            ("PUT /lake/a%20b\nx-amz-meta-a: b  c\n\nbytes", 200),
            ("GET /lake/a%20b?response-content-type=text%2Fplain\nrange: bytes=1-2", 206),
            ("GET /lake?list-type=2&prefix=a+b", 200),
            ("PUT /lake/shared/c\nx-amz-copy-source: /lake/a%20b", 200),
            ("DELETE /lake/a%20b", 204),
            ("GET /lake/a%20b", 404),
            (" GET /lake/a%20b", 403),
            (
                "POST /lake?delete\ncontent-md5: KXCZmkmPqLnkoY+X+76Y4g==\n\n<Delete><Object><Key>shared/c</Key></Object></Delete>",
                200,
            ),
        ] {
            assert_eq!(status(gateway.ask(request.as_bytes())), expected, "{request}");
        }
        assert_eq!(gateway.ask(b"nothing"), None);
    }
}
