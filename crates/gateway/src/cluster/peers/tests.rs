use proptest::prelude::*;

use super::*;
use crate::ownership::VisiblePeer;

fn peers(secret: &str) -> PeerClients {
    PeerClients {
        secret: secret.as_bytes().to_vec(),
        connector: None,
        simulated: None,
        ownership: Arc::new(SlotOwnership::new(1)),
        kept: Mutex::new(HashMap::new()),
        forwarded: AtomicU64::new(0),
        standstill: STANDSTILL,
    }
}

#[test]
fn only_who_has_the_secret_is_of_the_cluster() {
    let (us, others) = (peers("one secret of sixteen"), peers("another of sixteen.."));
    let request = |signer: &PeerClients, target: &str, body: &str| {
        let mut request = Request::new(());
        *request.uri_mut() = target.parse().unwrap();
        request.headers_mut().insert(PROOF, signer.signed(&Method::GET, target, body).unwrap());
        request
    };
    let right = request(&us, "/lake/a?x=1", "client");
    assert!(matches!(us.asked(&right), PeerRequest::ByClient));
    assert!(matches!(us.asked(&request(&others, "/lake/a", "client")), PeerRequest::ByStranger));
    // Of another request, of another time, twice, or not at all.
    let mut other = right.clone();
    *other.uri_mut() = "/lake/b?x=1".parse().unwrap();
    assert!(matches!(us.asked(&other), PeerRequest::ByStranger));
    let mut late = right.clone();
    let time_ms = now_ms() - MAX_SKEW_MS - 1000;
    let proof = us.proof(&Method::GET, "/lake/a?x=1", time_ms, "client").unwrap();
    late.headers_mut().insert(PROOF, format!("{time_ms} client {proof}").parse().unwrap());
    assert!(matches!(us.asked(&late), PeerRequest::ByStranger));
    let mut twice = right.clone();
    let value = twice.headers()[&PROOF].clone();
    twice.headers_mut().append(PROOF, value);
    assert!(matches!(us.asked(&twice), PeerRequest::ByStranger));
    let mut bare = right;
    PeerClients::take_proof(&mut bare);
    assert!(matches!(us.asked(&bare), PeerRequest::ByStranger));
}

/// It takes connections, and closes all but the first. On that it says what there is to say, the last of it after many
/// standstills.
async fn forwarded_to_one_that(
    beginning: &'static [u8],
    finally: &'static [u8],
    standstill: Duration,
    pong: bool,
) -> GatewayResult<Response<s3s::Body>> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let mut answered = 0;
        while answered < 3 {
            let (mut question, _) = listener.accept().await.unwrap();
            if pong {
                answered += 1;
                let _ = question.read(&mut [0; 1024]).await;
                let answer = postcard::to_allocvec(&Ok::<_, GatewayError>(PeerAnswer::Pong)).unwrap();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    answer.len()
                );
                question.write_all(&[head.as_bytes(), &answer].concat()).await.unwrap();
                // Closed earlier, it would take the answer with it.
                while question.read(&mut [0; 1024]).await.is_ok_and(|bytes| bytes > 0) {}
            }
        }
        stream.write_all(finally).await.unwrap();
        std::future::pending::<()>().await;
    });
    let mut us = peers("one secret of sixteen");
    us.standstill = standstill;
    let other = VisiblePeer { address: address.clone() };
    us.ownership.learn(HashMap::from([("other".to_owned(), other)]), Vec::new());
    let request = Request::builder().uri("/lake/a").body(Full::new(Bytes::new())).unwrap();
    us.forward("other", &address, request).await
}

#[tokio::test]
async fn hanging_peer_times_out() {
    let soon = Duration::from_millis(50);
    let outcome = forwarded_to_one_that(b"", b"", soon, false).await;
    let Err(error) = outcome else { panic!("it has answered") };
    assert!(matches!(error, GatewayError::Busy(_)), "{error}");
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na";
    // Long enough for the head to arrive on a busy machine.
    let answer = forwarded_to_one_that(head, b"", Duration::from_secs(5), false).await.unwrap();
    let Err(error) = answer.into_body().collect().await else { panic!("two bytes are missing") };
    let error = error.to_string();
    assert!(error.contains("stands still"), "{error}");
}

/// As it does while it stores a large object.
#[tokio::test]
async fn slow_peer_with_pings_is_waited_for() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
    let answer = forwarded_to_one_that(b"", whole, Duration::from_millis(20), true).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "abc");
}

#[test]
fn key_from_path_matches_s3s() {
    let pair_of =
        |path: &str| name_of(&AddressingStyle::Path, path).map(|(bucket, key)| format!("{bucket} {key}"));
    assert_eq!(pair_of("/lake/a/b%20c").as_deref(), Some("lake a/b c"));
    assert_eq!(pair_of("/lake/%2e%2e/a//b").as_deref(), Some("lake ../a//b"));
    assert_eq!(pair_of("/lake%2Fa").as_deref(), Some("lake a"));
    assert_eq!(pair_of("/lake/100%").as_deref(), Some("lake 100%"));
    for none in ["/", "/lake", "/lake/", "", "lake/a", "/lake/%ff"] {
        assert_eq!(pair_of(none), None, "{none}");
    }
}

#[test]
fn bucket_in_host_and_path_has_same_owner() {
    let addressing = BucketAddressing::new(&["gateway.example".to_owned()], None, false);
    let named = |host: &str, target: &str| {
        let request = Request::builder().uri(target).header(HOST, host).body(()).unwrap();
        name_in(&request, &addressing).map(|(bucket, key)| format!("{bucket} {key}"))
    };
    assert_eq!(named("gateway.example", "/lake/a/b%20c").as_deref(), Some("lake a/b c"));
    assert_eq!(named("lake.gateway.example:9000", "/a/b%20c").as_deref(), Some("lake a/b c"));
    assert_eq!(named("lake.gateway.example", "/lake/a").as_deref(), Some("lake lake/a"));
    for (host, target) in
        [("lake.gateway.example", "/"), ("gateway.example", "/lake"), ("other.example", "/lake/a")]
    {
        assert_eq!(named(host, target), None, "{host} {target}");
    }
}

proptest! {
    #[test]
    fn arbitrary_proof_never_panics(value in "[ -~]{0,60}", path in "/[ -~]{0,20}") {
        let us = peers("one secret of sixteen");
        let mut request = Request::new(());
        if let Ok(value) = HeaderValue::from_str(&value) {
            request.headers_mut().insert(PROOF, value);
        }
        prop_assert!(matches!(us.asked(&request), PeerRequest::ByStranger));
        let _ = name_of(&AddressingStyle::Path, &path);
    }
}
