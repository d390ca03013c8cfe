//! How the gateway is started, and its configuration, as docs/gateway.md has it.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_config::units::format_bytes;

use crate::ceph::CephBucket;
use crate::certificate::ServerCertificate;

pub(super) const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Where clients find it in their network,
pub(crate) const ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(HOST, 9000));
/// and where it tells of itself.
pub(super) const ADMIN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(HOST, 9001));
/// Of the store that remembers where everything is.
const METADATA_BYTES: u64 = 32 << 20;
/// At a time. Each may hold some blocks of the cache in memory: few of them, since the budget is small.
const REQUESTS: u32 = 64;
const FLUSHES: u32 = 4;
/// Memory that it takes besides its memory tier: metadata, bodies that are in flight, threads. An estimate.
pub(crate) const OWN_BYTES: u64 = 224 << 20;

/// How to start it.
#[derive(Clone, Debug)]
pub(crate) struct GatewayPlan {
    pub system: &'static str,
    pub program: PathBuf,
    /// Its journal, metadata and flash, on a storage of the study.
    pub directory: PathBuf,
    pub scratch: PathBuf,
    pub sizes: GatewaySizes,
    /// How long a write may wait before it is stored; `None`: it is acknowledged when the store has it.
    pub flush_after: Option<Duration>,
    /// How long a write waits for room, or for the store.
    pub patience: Duration,
    /// Its certificate for clients, which speak TLS then; `None` where they use plain HTTP.
    pub certificate: Option<ServerCertificate>,
    /// The bucket as clients name it.
    pub serves: String,
    /// The store behind it: a bucket that exists.
    pub store: CephBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySizes {
    pub memory_bytes: u64,
    /// 0 for none.
    pub flash_bytes: u64,
    pub journal_bytes: u64,
}

/// Names of the gateway's own files in its scratch directory.
pub(super) const KEY_SECRET: &str = "key.secret";
pub(super) const STORE_SECRET: &str = "store.secret";
pub(super) const TOKEN: &str = "admin.token";

/// The text of `gateway.toml`; secrets are in files of their own beside it, in `scratch`.
pub(super) fn text(plan: &GatewayPlan, key_id: &str, scratch: &Path) -> String {
    let quoted = |path: &Path| toml_string(&path.display().to_string());
    let in_scratch = |name: &str| quoted(&scratch.join(name));
    let sizes = &plan.sizes;
    let write = match plan.flush_after {
        Some(after) => format!("write = \"back\"\nflush_after = \"{} ms\"", after.as_millis()),
        None => "write = \"through\"".to_owned(),
    };
    let flash = match sizes.flash_bytes {
        0 => String::new(),
        bytes => format!("cache = \"{}\"\n", format_bytes(bytes)),
    };
    let tls = plan.certificate.as_ref().map_or_else(String::new, |own| {
        format!("[tls]\ncertificate = {}\nkey = {}\n\n", quoted(&own.chain()), quoted(&own.key()))
    });
    let authority = plan.store.authority.as_ref();
    let authority =
        authority.map_or_else(String::new, |file| format!("authority = {}\n", quoted(file.as_path())));
    // No time to drain as it stops: a job that needs its store up to date waits for that before.
    let (bucket, store_bucket) = (&plan.serves, &plan.store.name);
    format!(
        "listen = \"{ADDRESS}\"\n\n{tls}\
         [local]\ndirectory = {directory}\njournal = \"{journal}\"\nmemory = \"{memory}\"\n{flash}metadata_memory = \"{metadata}\"\n\n\
         [s3]\nendpoint = {endpoint}\n{authority}key_id = {store_key}\nsecret_file = {store_secret}\n\n\
         [bucket.{bucket}]\nstore = \"s3://{store_bucket}\"\n{write}\n\n\
         [key.jobs]\nid = {id}\nsecret_file = {key_secret}\nallow = [{{ bucket = \"{bucket}\", may = [\"read\", \"write\"] }}]\n\n\
         [limits]\nrequests = {requests}\nflushes = {flushes}\npatience = \"{patience} s\"\ndrain = \"0 s\"\n\n\
         [admin]\nlisten = \"{ADMIN}\"\ntoken_file = {token}\n",
        directory = quoted(&plan.directory),
        journal = format_bytes(sizes.journal_bytes),
        memory = format_bytes(sizes.memory_bytes),
        metadata = format_bytes(METADATA_BYTES),
        endpoint = toml_string(&plan.store.endpoint),
        store_key = toml_string(&plan.store.keys.access),
        store_secret = in_scratch(STORE_SECRET),
        id = toml_string(key_id),
        key_secret = in_scratch(KEY_SECRET),
        requests = REQUESTS,
        flushes = FLUSHES,
        patience = plan.patience.as_secs().max(1),
        token = in_scratch(TOKEN),
    )
}

/// A basic string of TOML.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceph::S3Keys;

    #[test]
    fn secrets_go_to_files_and_unwanted_parts_are_omitted() {
        let plan = GatewayPlan {
            system: "test",
            program: "/usr/bin/underlay-gateway".into(),
            // A quotation mark in a path must not end the string in the file.
            directory: "/flash/a \"b\"/gateway".into(),
            scratch: "/scratch".into(),
            sizes: GatewaySizes { memory_bytes: 1 << 26, flash_bytes: 0, journal_bytes: 1 << 30 },
            flush_after: Some(Duration::from_millis(2500)),
            patience: Duration::from_secs(60),
            certificate: None,
            serves: "lake".to_owned(),
            store: CephBucket {
                name: "underlay".to_owned(),
                endpoint: "http://10.0.0.1:7480".to_owned(),
                authority: None,
                keys: S3Keys { access: "ABC".to_owned(), secret: "hidden".to_owned() },
            },
        };
        let back = text(&plan, "JOBS", Path::new("/scratch"));
        assert!(!back.contains("hidden") && !back.contains("\ncache ="), "{back}");
        assert!(!back.contains("[tls]") && !back.contains("authority"), "{back}");
        for line in [
            "directory = \"/flash/a \\\"b\\\"/gateway\"",
            "journal = \"1 GiB\"",
            "write = \"back\"",
            "flush_after = \"2500 ms\"",
            "secret_file = \"/scratch/store.secret\"",
            "[bucket.lake]",
            "store = \"s3://underlay\"",
        ] {
            assert!(back.lines().any(|one| one == line), "{line} in\n{back}");
        }
        let sizes = GatewaySizes { flash_bytes: 1 << 28, ..plan.sizes };
        let through = GatewayPlan { flush_after: None, sizes, ..plan.clone() };
        let through = text(&through, "JOBS", Path::new("/scratch"));
        assert!(through.contains("write = \"through\"\n") && !through.contains("flush_after"), "{through}");
        assert!(through.contains("\ncache = \"256 MiB\"\n"), "{through}");

        let folder = tempfile::TempDir::new().unwrap();
        let own = ServerCertificate::make(folder.path(), HOST).unwrap();
        let authority = Some("/store/gateway.pem".into());
        let store =
            CephBucket { endpoint: "https://10.0.0.1:7480".to_owned(), authority, ..plan.store.clone() };
        let secured = GatewayPlan { certificate: Some(own.clone()), store, ..plan };
        let secured = text(&secured, "JOBS", Path::new("/scratch"));
        let tls = format!(
            "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
            own.chain().display(),
            own.key().display()
        );
        assert!(secured.contains(&tls), "{secured}");
        let store_text = "[s3]\nendpoint = \"https://10.0.0.1:7480\"\nauthority = \"/store/gateway.pem\"\n";
        assert!(secured.contains(store_text), "{secured}");
    }
}
