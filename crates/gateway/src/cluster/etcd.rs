//! etcd by its JSON gateway, which every server of version 3 has on its client port. We need six requests of it; the
//! library with gRPC would take longer to build than the rest of the gateway.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use underlay_sync::Mutex;

/// Most bytes of an answer: 256 slots and as many members take a tenth of it.
const MAX_BYTES: usize = 4 << 20;

/// Why etcd did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("etcd: {text}")]
pub struct EtcdError {
    text: String,
    /// Whether what was asked for may have been done all the same, or may yet be.
    pub may_be_done: bool,
}

impl EtcdError {
    /// It was certainly not done, and never will be.
    pub fn not_done(text: impl Into<String>) -> EtcdError {
        EtcdError { text: text.into(), may_be_done: false }
    }

    pub fn unknown(text: impl Into<String>) -> EtcdError {
        EtcdError { text: text.into(), may_be_done: true }
    }
}

pub type EtcdResult<T> = std::result::Result<T, EtcdError>;

/// A member's operations on etcd.
#[async_trait]
pub trait EtcdKv: Send + Sync {
    /// All keys with a prefix, as they are now, and the revision that etcd has as a whole.
    async fn range(&self, prefix: &str) -> EtcdResult<(Vec<EtcdRow>, u64)>;

    /// If everything was so, everything is written, and this is the revision it has then. An error may say that nobody
    /// knows whether it was carried out, nor whether it yet will be.
    async fn transact(&self, compares: &[TransactionGuard], puts: &[EtcdPut]) -> EtcdResult<Option<u64>>;

    /// A lease, with how long it holds from when etcd answered.
    async fn grant(&self, ttl: Duration) -> EtcdResult<(i64, Duration)>;

    /// How long it holds from now on; `None` if it is gone.
    async fn keep_alive(&self, lease: i64) -> EtcdResult<Option<Duration>>;

    async fn revoke(&self, lease: i64) -> EtcdResult<()>;
}

/// See the module.
pub(super) struct EtcdClient {
    http: reqwest::Client,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
}

/// A key as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdRow {
    pub key: String,
    pub value: Vec<u8>,
    pub mod_revision: u64,
    pub lease: i64,
}

/// The condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionGuard {
    Absent(String),
    Present(String),
    Unchanged(String, u64),
    Leased(String, i64),
}

/// A key to be written, below a lease if it is to go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPut {
    pub key: String,
    pub value: Vec<u8>,
    pub lease: i64,
}

fn encoded(text: impl AsRef<[u8]>) -> String {
    STANDARD.encode(text)
}

/// Whole numbers of 64 bits are texts in this JSON, and zeros are left out.
fn number<T: std::str::FromStr + Default>(value: &Value) -> Option<T> {
    match value {
        Value::Null => Some(T::default()),
        Value::String(text) => text.parse().ok(),
        other => other.to_string().parse().ok(),
    }
}

fn nonsense(field: &str) -> EtcdError {
    EtcdError::unknown(format!("its answer has no {field} that makes sense"))
}

/// The rows of an answer to a range.
pub(super) fn rows_of(answer: &Value) -> EtcdResult<Vec<EtcdRow>> {
    let rows = match &answer["kvs"] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(rows) => rows,
        _ => return Err(nonsense("kvs")),
    };
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).ok();
    let row = |row: &Value| {
        Some(EtcdRow {
            key: String::from_utf8(bytes(&row["key"])?).ok()?,
            value: bytes(&row["value"])?,
            mod_revision: number(&row["mod_revision"])?,
            lease: number(&row["lease"])?,
        })
    };
    rows.iter().map(|found| row(found).ok_or_else(|| nonsense("row"))).collect()
}

fn compare_of(compare: &TransactionGuard) -> Value {
    match compare {
        TransactionGuard::Absent(key) => {
            json!({"key": encoded(key), "target": "CREATE", "result": "EQUAL", "createRevision": "0"})
        }
        TransactionGuard::Present(key) => {
            json!({"key": encoded(key), "target": "CREATE", "result": "GREATER", "createRevision": "0"})
        }
        TransactionGuard::Unchanged(key, revision) => {
            json!({"key": encoded(key), "target": "MOD", "result": "EQUAL", "modRevision": revision.to_string()})
        }
        TransactionGuard::Leased(key, lease) => {
            json!({"key": encoded(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string()})
        }
    }
}

impl EtcdClient {
    pub(super) fn new(
        endpoints: Vec<String>,
        user: Option<(String, String)>,
        authority: Option<&[u8]>,
        patience: Duration,
    ) -> std::result::Result<EtcdClient, String> {
        // A proxy from the environment is not for etcd.
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            // No etcd sends one on, and the password would go along.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(patience)
            .connect_timeout(patience);
        if let Some(pem) = authority {
            let certificate = reqwest::Certificate::from_pem(pem)
                .map_err(|error| format!("[cluster]: the authority is no certificate: {error}"))?;
            builder = builder.tls_certs_only([certificate]);
        }
        let http = builder.build().map_err(|error| format!("cannot make requests to etcd: {error}"))?;
        Ok(EtcdClient { http, endpoints, current: AtomicUsize::new(0), user, token: Mutex::new(None) })
    }

    async fn post(&self, url: &str, body: &Value, token: Option<&str>) -> EtcdResult<(u16, Value)> {
        // Of an error with its whole chain, the innermost says most. Without a connection nothing was sent.
        let failed = |error: reqwest::Error| {
            let may_be_done = !error.is_connect();
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            EtcdError { text, may_be_done }
        };
        let mut request = self
            .http
            .post(url)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body.to_string());
        if let Some(token) = token {
            request = request.header(reqwest::header::AUTHORIZATION, token);
        }
        let mut answer = request.send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            if bytes.len() + piece.len() > MAX_BYTES {
                return Err(EtcdError::unknown("its answer is too long"));
            }
            bytes.extend_from_slice(&piece);
        }
        let value = serde_json::from_slice(&bytes).map_err(|_| nonsense("JSON"))?;
        Ok((status, value))
    }

    async fn token(&self, endpoint: &str) -> EtcdResult<Option<String>> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        let cached = self.token.lock().clone();
        if cached.is_some() {
            return Ok(cached);
        }
        let asked = json!({"name": name, "password": password});
        let (status, answer) = self.post(&format!("{endpoint}/v3/auth/authenticate"), &asked, None).await?;
        let Some(token) = answer["token"].as_str().filter(|_| status == 200) else {
            return Err(EtcdError::not_done(format!("it does not let user {name} in: {}", said(&answer))));
        };
        *self.token.lock() = Some(token.to_owned());
        Ok(Some(token.to_owned()))
    }

    /// Asks the endpoint that answered last, and then each of the others. A request that must not be done twice is not
    /// repeated once it may have been done: the second answer would not cover the first request, which may still be on
    /// its way.
    async fn ask(&self, path: &str, body: &Value, twice: RetryPolicy) -> EtcdResult<Value> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last_error = EtcdError::not_done("[cluster] names no endpoint");
        for index in 0..self.endpoints.len() {
            let number = (first + index) % self.endpoints.len();
            match self.ask_one(&self.endpoints[number], path, body).await {
                Ok(answer) => {
                    self.current.store(number, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) if error.may_be_done && twice == RetryPolicy::Never => return Err(error),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    async fn ask_one(&self, endpoint: &str, path: &str, body: &Value) -> EtcdResult<Value> {
        for attempt in 0..2 {
            // Without a token nothing else was asked for.
            let token = self.token(endpoint).await.map_err(|error| EtcdError::not_done(error.text))?;
            let (status, answer) = self.post(&format!("{endpoint}{path}"), body, token.as_deref()).await?;
            match status {
                200 => return Ok(answer),
                // A token does not last forever.
                401 if attempt == 0 && token.is_some() => *self.token.lock() = None,
                400 | 401 | 403 => {
                    return Err(EtcdError::not_done(format!("status {status}: {}", said(&answer))));
                }
                _ => return Err(EtcdError::unknown(format!("status {status}: {}", said(&answer)))),
            }
        }
        Err(EtcdError::not_done("it takes no token"))
    }
}

/// Whether a request may be made again when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryPolicy {
    May,
    Never,
}

#[async_trait]
impl EtcdKv for EtcdClient {
    async fn range(&self, prefix: &str) -> EtcdResult<(Vec<EtcdRow>, u64)> {
        // The key behind all that have the prefix.
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let asked = json!({"key": encoded(prefix), "range_end": encoded(end)});
        let answer = self.ask("/v3/kv/range", &asked, RetryPolicy::May).await?;
        let revision = number(&answer["header"]["revision"]).filter(|revision| *revision > 0);
        Ok((rows_of(&answer)?, revision.ok_or_else(|| nonsense("revision"))?))
    }

    async fn transact(&self, compares: &[TransactionGuard], puts: &[EtcdPut]) -> EtcdResult<Option<u64>> {
        let compare: Vec<Value> = compares.iter().map(compare_of).collect();
        let put = |put: &EtcdPut| json!({"requestPut": {"key": encoded(&put.key), "value": encoded(&put.value), "lease": put.lease.to_string()}});
        let success: Vec<Value> = puts.iter().map(put).collect();
        let asked = json!({"compare": compare, "success": success});
        let answer = self.ask("/v3/kv/txn", &asked, RetryPolicy::Never).await?;
        match &answer["succeeded"] {
            // False is left out.
            Value::Null | Value::Bool(false) => Ok(None),
            Value::Bool(true) => {
                number(&answer["header"]["revision"]).map(Some).ok_or_else(|| nonsense("revision"))
            }
            _ => Err(nonsense("succeeded")),
        }
    }

    async fn grant(&self, ttl: Duration) -> EtcdResult<(i64, Duration)> {
        let asked = json!({"TTL": ttl.as_secs().to_string()});
        let answer = self.ask("/v3/lease/grant", &asked, RetryPolicy::May).await?;
        match (number::<i64>(&answer["ID"]), number::<u64>(&answer["TTL"])) {
            (Some(id), Some(ttl)) if id != 0 && ttl > 0 => Ok((id, Duration::from_secs(ttl))),
            _ => Err(nonsense("lease")),
        }
    }

    async fn keep_alive(&self, lease: i64) -> EtcdResult<Option<Duration>> {
        let asked = json!({"ID": lease.to_string()});
        let answer = self.ask("/v3/lease/keepalive", &asked, RetryPolicy::May).await?;
        let ttl = number::<i64>(&answer["result"]["TTL"]).ok_or_else(|| nonsense("TTL"))?;
        Ok(u64::try_from(ttl).ok().filter(|ttl| *ttl > 0).map(Duration::from_secs))
    }

    async fn revoke(&self, lease: i64) -> EtcdResult<()> {
        self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()}), RetryPolicy::May).await.map(drop)
    }
}

fn said(answer: &Value) -> String {
    let text = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or("no reason");
    text.chars().take(200).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_are_read_as_etcd_writes_them() {
        let answer = json!({
            "header": {"revision": "7"},
            "kvs": [{"key": "L2E=", "create_revision": "3", "mod_revision": "7", "version": "2", "value": "eA==", "lease": "7587"}],
            "count": "1"
        });
        let row = EtcdRow { key: "/a".to_owned(), value: b"x".to_vec(), mod_revision: 7, lease: 7587 };
        assert_eq!(rows_of(&answer).unwrap(), [row]);
        assert_eq!(rows_of(&json!({"header": {}})).unwrap(), []);
        assert!(rows_of(&json!({"kvs": [{"key": "%"}]})).is_err() && rows_of(&json!({"kvs": 1})).is_err());
    }

    /// Takes one request and answers this to it, or nothing. Says how many came.
    async fn server(answer: Option<&'static str>) -> (String, std::sync::Arc<AtomicUsize>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let count = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&count);
        tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let mut request = vec![0; 4096];
                let _ = stream.read(&mut request).await;
                if let Some(answer) = answer {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
                    let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
                }
                connections.push(stream);
            }
        });
        (url, count)
    }

    #[tokio::test]
    async fn transaction_possibly_sent_is_not_repeated_elsewhere() {
        let (silent, _) = server(None).await;
        let (right, asked) = server(Some(r#"{"header":{"revision":"7"},"succeeded":true}"#)).await;
        let client_of = |first: &str| {
            EtcdClient::new(vec![first.to_owned(), right.clone()], None, None, Duration::from_millis(300))
                .unwrap()
        };
        let error = client_of(&silent).transact(&[], &[]).await.unwrap_err();
        assert!(error.may_be_done, "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        // Nobody listens there, so nothing was sent.
        let unused_address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(client_of(&format!("http://{unused_address}")).transact(&[], &[]).await, Ok(Some(7)));
        // A read goes to another member.
        assert_eq!(client_of(&silent).range("/t/").await, Ok((Vec::new(), 7)));
    }

    proptest! {
        #[test]
        fn etcd_answers_never_panic(text in "\\PC{0,60}", key in "[A-Za-z0-9+/=%]{0,12}", revision in any::<i64>()) {
            let _ = rows_of(&Value::String(text.clone()));
            let _ = rows_of(&json!({"kvs": [{"key": key, "value": text, "mod_revision": revision}]}));
        }
    }
}
