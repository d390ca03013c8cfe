//! A client against a server that says what a test wants, in virtual time and without a gateway.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::LocalSet;

use super::*;
use crate::model::tests::setup;
use crate::script::{BodyFraming, BodyPace, ClientCondition, ClientHeaders};

type Answering = fn(&str, &[u8]) -> Option<String>;

fn put(framing: BodyFraming, pace: BodyPace) -> ClientOperation {
    ClientOperation::Put {
        key: 0,
        size: 1000,
        condition: ClientCondition::None,
        headers: ClientHeaders::Plain,
        framing,
        pace,
    }
}

const GET: ClientOperation = ClientOperation::Get { key: 0, range: None, pace: BodyPace::Full };

/// Plays operations against a server whose answers this makes of heads and bodies; `None` breaks the connection.
fn play(operations: &[ClientOperation], answering: Answering) -> ObjectModel {
    let runtime =
        // In virtual time a timeout takes none of ours.
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let world = SimulatedWorld::new(1, false);
    let (network, setup) = (SimulatedNetwork::new(world.clone()), setup());
    let session = ClientSession {
        world: world.clone(),
        network: network.clone(),
        model: ObjectModel::new(world.clone(), &setup),
        stores: SimulatedStores::new(world, &setup.store),
        gateways: 1,
        client: 0,
        id: "ID".to_owned(),
        secret: "SECRET".to_owned(),
        bucket: "lake".to_owned(),
    };
    let mut arrivals = network.listen(0, Arc::new(AtomicBool::new(true)));
    let local = LocalSet::new();
    local.spawn_local(async move {
        while let Some(mut wire) = arrivals.recv().await {
            let (mut received, mut buffer) = (Vec::new(), vec![0; 1000]);
            let (head, body) = loop {
                let length = wire.read(&mut buffer).await.unwrap();
                assert_ne!(length, 0, "the client has gone");
                received.extend_from_slice(&buffer[..length]);
                let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
                    continue;
                };
                let head = String::from_utf8(received[..end].to_vec()).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if received.len() - end - 4 == length.parse::<usize>().unwrap() {
                    break (head, received[end + 4..].to_vec());
                }
            };
            if let Some(answer) = answering(&head, &body) {
                wire.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    let performing = async {
        for operation in operations {
            perform(operation, &session).await;
        }
    };
    local.block_on(&runtime, performing);
    session.model.clone()
}

fn answer(status: &str, headers: &str, body: &str) -> Option<String> {
    Some(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()))
}

#[test]
fn missing_acknowledged_object_is_a_failure() {
    let model = play(&[put(BodyFraming::Whole, BodyPace::Full), GET], |head, body| {
        match head.starts_with("PUT /lake/a ") {
            true => {
                assert_eq!(body.len(), 1000);
                answer("200 OK", "", "")
            }
            false => answer("404 Not Found", "", ""),
        }
    });
    assert!(model.failure().unwrap().contains("found nothing"));
}

#[test]
fn broken_connection_leaves_both_outcomes_possible() {
    let model =
        play(&[put(BodyFraming::Whole, BodyPace::Full), GET], |head, _| match head.starts_with("PUT") {
            true => None,
            false => answer("404 Not Found", "", ""),
        });
    assert_eq!((model.failure(), model.acknowledged(), model.refused()), (None, 0, 1));
}

#[test]
fn other_bytes_are_a_failure() {
    let model =
        play(&[put(BodyFraming::Whole, BodyPace::Full), GET], |head, _| match head.starts_with("PUT") {
            true => answer("200 OK", "", ""),
            false => answer("200 OK", "x-amz-meta-id: v2\r\n", &"x".repeat(1000)),
        });
    assert!(model.failure().unwrap().contains("GET \"a\": found 1000 bytes"));
}

#[test]
fn chunks_and_slow_bodies_arrive_whole() {
    let signed = put(BodyFraming::Signed { chunk_bytes: 600 }, BodyPace::Slow { bytes_per_s: 100 });
    let trailer = put(BodyFraming::Trailer { chunk_bytes: 5000 }, BodyPace::Full);
    let model = play(&[signed, trailer], |head, body| {
        let text = String::from_utf8_lossy(body).into_owned();
        match head.contains("STREAMING-AWS4-HMAC-SHA256-PAYLOAD") {
            true => assert!(text.starts_with("258;chunk-signature=") && body.len() > 1000),
            false => assert!(text.starts_with("3e8\r\n") && text.contains("x-amz-checksum-crc32c:")),
        }
        answer("200 OK", "", "")
    });
    assert_eq!((model.failure(), model.acknowledged()), (None, 2));
}

#[test]
fn undeserved_refusal_is_a_failure() {
    let model = play(&[put(BodyFraming::Whole, BodyPace::Full)], |_, _| {
        answer("403 Forbidden", "", "<Error><Code>SignatureDoesNotMatch</Code></Error>")
    });
    assert!(model.failure().unwrap().contains("SignatureDoesNotMatch"));
}

#[test]
fn gateway_accepting_endless_document_is_found() {
    let document = ClientOperation::Document { bytes: 64 << 20, pace: BodyPace::Full };
    let world = SimulatedWorld::new(1, false);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (network, setup) = (SimulatedNetwork::new(world.clone()), setup());
    let model = ObjectModel::new(world.clone(), &setup);
    let session = ClientSession {
        world: world.clone(),
        network: network.clone(),
        model: model.clone(),
        stores: SimulatedStores::new(world, &setup.store),
        gateways: 1,
        client: 0,
        id: "ID".to_owned(),
        secret: "SECRET".to_owned(),
        bucket: "lake".to_owned(),
    };
    let mut arrivals = network.listen(0, Arc::new(AtomicBool::new(true)));
    let local = LocalSet::new();
    local.spawn_local(async move {
        while let Some(mut wire) = arrivals.recv().await {
            let mut buffer = vec![0; 100_000];
            while wire.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
        }
    });
    local.block_on(&runtime, perform(&document, &session));
    assert!(model.failure().unwrap().contains("bytes of a document"));
}
