//! The end of a gateway: nothing is acknowledged that its exit code does not count.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use underlay_gateway::config::WriteMode;
use underlay_gateway::engine::WriteConditions;
use underlay_gateway::errors::GatewayError;
use underlay_gateway::store::BackendKind;

use crate::own_s3::OwnS3;
use crate::program::Program;
use crate::rig::{Ground, content, get, in_memory, put};
use crate::signed::{ask, sign};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_behind_close_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    let engine = ground.open(directory.path()).await;
    put(&engine, "a", &content(1, 1000), WriteConditions::default()).await.unwrap();
    engine.close().await;
    let refused = put(&engine, "b", &content(2, 1000), WriteConditions::default()).await;
    assert!(matches!(&refused, Err(GatewayError::Busy(why)) if why.contains("stopping")), "{refused:?}");
    assert_eq!(get(&engine, "b", None).await, Err(GatewayError::NoSuchKey));
    // What came before counts, and is there.
    assert!(!engine.is_clean() && engine.pending().0 == 1);
    assert_eq!(get(&engine, "a", None).await.unwrap(), content(1, 1000));
}

#[test]
fn put_beyond_half_of_drain_gets_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.refuse_puts(true);
    let of_bucket = "write = \"back\"\n[limits]\ndrain = \"6 s\"";
    let mut program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    // What the store refuses keeps the gateway for the other half.
    assert_eq!(ask(program.address, "PUT", "/lake/refused", &[], b"bytes").unwrap().status, 200);
    let mut slow = TcpStream::connect(program.address).unwrap();
    let asked = ("PUT", "/lake/slow", "/lake/slow");
    let signed = sign(program.address, asked, &[], "UNSIGNED-PAYLOAD", 45);
    slow.write_all(signed.head.as_bytes()).unwrap();
    // It has been accepted by then.
    std::thread::sleep(Duration::from_millis(300));
    program.terminate();
    // The last byte comes behind the half.
    for _ in 0..45 {
        std::thread::sleep(Duration::from_millis(100));
        if slow.write_all(b"x").is_err() {
            break;
        }
    }
    let mut answer = String::new();
    let _ = slow.read_to_string(&mut answer);
    let (status, log) = program.wait_end();
    assert!(log.contains("some requests did not end in time and are aborted"), "{log}");
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(status.code(), Some(1), "{log}");
    // It was not taken either.
    store.refuse_puts(false);
    program.start_again();
    assert_eq!(ask(program.address, "GET", "/lake/slow", &[], b"").unwrap().status, 404);
}
