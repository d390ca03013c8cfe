//! Local disks that are full, from outside: clients get SlowDown, the gateway goes on, and so does the next start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::{Attribute, GetOptions, ObjectStore as _, ObjectStoreExt as _};
use underlay_gateway::config::WriteMode;
use underlay_gateway::engine::{CopyRequest, GatewayEngine, WriteConditions};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::ObjectHeaders;
use underlay_gateway::store::BackendKind;

use crate::program::Program;
use crate::rig::{BUCKET, Ground, content, delete, get, in_memory, put};
use crate::signed::ask;

/// Unmounts it with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A directory with a disk of 192 MiB in it, as `local`: in memory, and one in a file with ext4 on it, where such can
/// be had.
fn small_disks(each: impl Fn(&Path, &str)) {
    if !rustix::process::geteuid().is_root() {
        // `scripts/test` runs this as root.
        return;
    }
    for kind in ["tmpfs", "ext4"] {
        let directory = tempfile::tempdir().unwrap();
        // Where a program has its local directory.
        let place = directory.path().join("local");
        std::fs::create_dir(&place).unwrap();
        let mounted = match kind {
            "tmpfs" => Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=192m,mode=700", "underlay-gateway-test"])
                .arg(&place)
                .status()
                .unwrap()
                .success(),
            _ => {
                let image = directory.path().join("image");
                std::fs::File::create(&image).unwrap().set_len(192 << 20).unwrap();
                let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image).status();
                made.is_ok_and(|made| made.success())
                    && Command::new("mount")
                        .args(["-o", "loop"])
                        .args([&image, &place])
                        .status()
                        .is_ok_and(|mounted| mounted.success())
            }
        };
        assert!(mounted || kind == "ext4", "{kind} can't be mounted");
        if mounted {
            let _mounted = Mounted(place.clone());
            each(directory.path(), kind);
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// A store that takes nothing before the test says so, and a journal larger than the disk.
fn waiting() -> Ground {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.write = WriteMode::Back { after: Duration::from_secs(3600) };
    ground.journal_bytes = 4 << 30;
    ground.patience = Duration::from_millis(200);
    ground
}

/// Writes rows without a body until they are refused.
async fn fill_with_rows(engine: &Arc<GatewayEngine>) {
    let headers = ObjectHeaders { content_disposition: Some("x".repeat(6000)), ..ObjectHeaders::default() };
    for _ in 0..400 {
        let begin = || engine.create_upload(BUCKET, "upload", headers.clone(), Vec::new(), None);
        let begun = futures_util::future::join_all((0..64).map(|_| begin())).await;
        for outcome in begun {
            match outcome {
                Ok(_) => {}
                Err(GatewayError::Busy(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
    panic!("the disk is never full");
}

#[test]
fn concurrent_writers_leave_room_for_metadata() {
    small_disks(|directory, kind| {
        runtime().block_on(async {
            let disk = directory.join("local");
            let (ground, local) = (waiting(), disk.join("gateway"));
            let engine = ground.open(&local).await;
            // Each of them finds the same room.
            let writers = (0..24_u64).map(|key| {
                let engine = Arc::clone(&engine);
                tokio::spawn(async move {
                    let bytes = content(key, 12 << 20);
                    (key, put(&engine, &format!("key{key:02}"), &bytes, WriteConditions::default()).await)
                })
            });
            let mut stored = Vec::new();
            for written in futures_util::future::join_all(writers).await {
                match written.unwrap() {
                    (key, Ok(_)) => stored.push(key),
                    (_, Err(GatewayError::Busy(_))) => {}
                    (key, Err(error)) => panic!("{kind} {key}: {error}"),
                }
            }
            assert!(!stored.is_empty() && stored.len() < 24, "{kind}: {stored:?}");
            fill_with_rows(&engine).await;
            // What makes room goes on.
            for _ in 0..2 {
                let deleted = stored.pop().unwrap();
                delete(&engine, &format!("key{deleted:02}")).await.unwrap();
            }
            put(&engine, "small", &content(7, 1000), WriteConditions::default()).await.unwrap();
            // Another one takes what is left, to the last byte.
            let filler = disk.join("filler");
            fill(&filler);
            assert!(matches!(
                put(&engine, "more", &content(8, 10), WriteConditions::default()).await,
                Err(GatewayError::Busy(_))
            ));
            let empty = put(&engine, "empty", &content(8, 0), WriteConditions::default()).await;
            assert!(matches!(empty, Err(GatewayError::Busy(_))), "{kind}: {empty:?}");
            engine.close().await;
            drop(engine);

            // It starts, and stores what it has.
            let engine = ground.open(&local).await;
            for key in &stored {
                assert_eq!(
                    get(&engine, &format!("key{key:02}"), None).await.unwrap(),
                    content(*key, 12 << 20)
                );
            }
            ground.drain(&engine).await;
            assert_eq!(ground.stored().await.len(), stored.len() + 1, "{kind}");
            std::fs::remove_file(&filler).unwrap();
            // Clients are served as soon as the metadata have their reserve again.
            let begun = Instant::now();
            while put(&engine, "again", &content(9, 1000), WriteConditions::default()).await.is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{kind}: it stays full");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            engine.close().await;
        });
    });
}

/// The bytes come from the store and go back there with the headers. The disk never has room for them.
#[test]
fn headers_of_object_beyond_disk_are_stored() {
    small_disks(|directory, kind| {
        runtime().block_on(async {
            let mut ground = waiting();
            ground.write = WriteMode::Back { after: Duration::from_millis(5) };
            let (bytes, path) = (content(1, 160 << 20), object_store::path::Path::from("a"));
            ground.store.put(&path, bytes.clone().into()).await.unwrap();
            let engine = ground.open(&directory.join("local/gateway")).await;
            let headers =
                ObjectHeaders { content_type: Some("text/new".to_owned()), ..ObjectHeaders::default() };
            let itself = (BUCKET.to_owned(), "a".to_owned());
            let (from, to) = (itself.clone(), itself);
            let request = CopyRequest { from, to, headers: Some(headers.clone()), ..CopyRequest::default() };
            engine.copy(request).await.unwrap();
            ground.drain(&engine).await;
            let found = ground.store.get_opts(&path, GetOptions::default()).await.unwrap();
            let content_type = found.attributes.get(&Attribute::ContentType).map(AsRef::as_ref);
            assert_eq!(content_type, Some("text/new"), "{kind}");
            // Nothing is left of what the store has kept meanwhile.
            let stored = ground.stored().await;
            assert!(stored.len() == 1 && stored[0].1 == bytes, "{kind}: {}", stored.len());
            assert_eq!(engine.resolve(BUCKET, "a").await.unwrap().record.headers, headers, "{kind}");
            assert!(get(&engine, "a", None).await.unwrap() == bytes, "{kind}");
            engine.close().await;
        });
    });
}

/// Takes all that is left.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 20, 4096, 512] {
        let bytes = vec![1; size];
        while file.write_all(&bytes).and_then(|()| file.sync_data()).is_ok() {}
    }
}

#[test]
fn full_disk_shows_in_log_metrics_and_readiness() {
    small_disks(|directory, kind| {
        let sections = format!(
            "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\nflush_after = \"1 h\"\n",
            directory.join("objects").display()
        );
        std::fs::create_dir(directory.join("objects")).unwrap();
        let program = Program::start(directory, &sections);
        let put = |key: usize| ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"bytes").unwrap();
        let ready = || program.ask("/health/ready", "").unwrap();
        let figure = |name: &str| -> f64 {
            let header = format!("Authorization: Bearer {}\r\n", program.token());
            let text = program.ask("/metrics", &header).unwrap();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert_eq!(put(0).status, 200);
        assert!(!ready().contains("disk is full"), "{kind}");
        assert!(figure("underlay_gateway_local_free_bytes ") > f64::from(32 << 20), "{kind}");

        let filler = directory.join("local/filler");
        fill(&filler);
        for key in 1..50 {
            let reply = put(key);
            assert!(reply.status == 503 && reply.text().contains("<Code>SlowDown</Code>"), "{reply:?}");
        }
        assert_eq!(ask(program.address, "GET", "/lake/0", &[], b"").unwrap().text(), "bytes");
        assert!(figure("underlay_gateway_refused_for_room_total{cause=\"disk\"}") >= 49.0, "{kind}");
        assert!(figure("underlay_gateway_local_free_bytes ") < f64::from(16 << 20), "{kind}");
        let ready_when_full = ready();
        // Reads go on.
        assert!(ready_when_full.starts_with("HTTP/1.1 200"), "{ready_when_full}");
        assert!(ready_when_full.contains("the local disk is full"), "{ready_when_full}");
        let log = std::fs::read_to_string(directory.join("gateway.toml.log")).unwrap();
        let count = log.lines().filter(|line| line.contains("answered with SlowDown")).count();
        // The first one, and one a minute.
        assert!((1..10).contains(&count), "{count} of 49: {log}");
        assert!(log.contains("local disk is full") && log.contains("what to do"), "{log}");

        std::fs::remove_file(&filler).unwrap();
        let begun = Instant::now();
        while put(50).status != 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{kind}: it stays full");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!ready().contains("disk is full"), "{kind}");
    });
}
