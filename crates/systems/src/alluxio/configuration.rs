//! The properties that its servers and clients have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ceph::CephBucket;

/// Where it keeps what it caches, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheTiers {
    pub memory: PathBuf,
    pub memory_bytes: u64,
    /// The second tier, if there is one.
    pub flash: Option<(PathBuf, u64)>,
}

/// The least that a file that is written reserves at once.
const MIN_RESERVED_BYTES: u64 = 1 << 20;

/// The blocks of files, and those who write them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSettings {
    pub bytes: u64,
    pub writers: u64,
    /// Of the memory tier.
    pub tier_bytes: u64,
}

impl BlockSettings {
    /// The bytes of the first tier that each written file reserves. By default that is a whole block however small the
    /// file, so that a few writers empty a tier of a few blocks.
    fn reserved_bytes(self) -> u64 {
        let share = self.tier_bytes / self.writers.saturating_mul(4).max(1);
        self.bytes.min(share.max(MIN_RESERVED_BYTES))
    }
}

/// The clients' properties, by Alluxio's own names.
pub(crate) fn client_properties(
    persist_after: Option<Duration>,
    is_short: bool,
    blocks: BlockSettings,
    slow_motion: f64,
) -> BTreeMap<String, String> {
    let (write, wait) = match persist_after {
        Some(after) => ("ASYNC_THROUGH", after.mul_f64(slow_motion)),
        None => ("CACHE_THROUGH", Duration::ZERO),
    };
    [
        ("alluxio.master.hostname", "127.0.0.1".to_owned()),
        ("alluxio.user.hostname", "127.0.0.1".to_owned()),
        ("alluxio.user.file.writetype.default", write.to_owned()),
        ("alluxio.user.file.persistence.initial.wait.time", format!("{}ms", wait.as_millis())),
        ("alluxio.user.file.readtype.default", "CACHE".to_owned()),
        ("alluxio.user.block.size.bytes.default", blocks.bytes.to_string()),
        ("alluxio.user.file.reserved.bytes", blocks.reserved_bytes().to_string()),
        ("alluxio.user.short.circuit.enabled", is_short.to_string()),
        // Clients tell the master what they read past the worker, once a second and not once in ten.
        ("alluxio.user.metrics.collection.enabled", "true".to_owned()),
        ("alluxio.user.metrics.heartbeat.interval", "1s".to_owned()),
        // Nobody else writes to the bucket.
        ("alluxio.user.file.metadata.sync.interval", "-1".to_owned()),
        ("alluxio.security.authentication.type", "NOSASL".to_owned()),
        ("alluxio.security.authorization.permission.enabled", "false".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The servers' `alluxio-site.properties`, keys included: others must not read it.
pub(super) fn server_properties(
    bucket: &CephBucket,
    tiers: &CacheTiers,
    journal: &Path,
    uploads: &Path,
    clients: &BTreeMap<String, String>,
    slow_motion: f64,
) -> String {
    let seconds = |s: f64| format!("{}s", (s * slow_motion.max(1.0)).ceil());
    let mut properties = clients.clone();
    let mut add = |name: &str, value: String| drop(properties.insert(name.to_owned(), value));
    for role in ["worker", "job.master", "job.worker"] {
        add(&format!("alluxio.{role}.hostname"), "127.0.0.1".to_owned());
    }
    for role in ["master", "worker", "job.master", "job.worker"] {
        add(&format!("alluxio.{role}.bind.host"), "127.0.0.1".to_owned());
        add(&format!("alluxio.{role}.web.bind.host"), "127.0.0.1".to_owned());
    }
    add("alluxio.master.journal.type", "UFS".to_owned());
    add("alluxio.master.journal.folder", journal.display().to_string());
    // Files to store are written here first, as a whole. By default that is the host's `/tmp`.
    add("alluxio.tmp.dirs", uploads.display().to_string());
    add("alluxio.master.metastore", "HEAP".to_owned());
    add("alluxio.master.mount.table.root.ufs", format!("s3://{}/", bucket.name));
    for (name, value) in
        [("accessKeyId", bucket.keys.access.clone()), ("secretKey", bucket.keys.secret.clone())]
    {
        add(&format!("alluxio.master.mount.table.root.option.s3a.{name}"), value);
    }
    for (name, value) in [
        ("endpoint", bucket.endpoint.clone()),
        ("disable.dns.buckets", "true".to_owned()),
        ("inherit.acl", "false".to_owned()),
        // The other one sends empty objects part by part, which this version of Ceph rejects over plain HTTP.
        ("signer.algorithm", "S3SignerType".to_owned()),
    ] {
        add(&format!("alluxio.master.mount.table.root.option.alluxio.underfs.s3.{name}"), value);
    }
    let flash = tiers.flash.as_ref().map(|(folder, bytes)| ("SSD", folder, *bytes));
    let levels: Vec<_> = [("MEM", &tiers.memory, tiers.memory_bytes)].into_iter().chain(flash).collect();
    add("alluxio.worker.ramdisk.size", tiers.memory_bytes.to_string());
    add("alluxio.worker.tieredstore.levels", levels.len().to_string());
    for (level, (alias, folder, bytes)) in levels.into_iter().enumerate() {
        let tier_property = |name: &str| format!("alluxio.worker.tieredstore.level{level}.{name}");
        add(&tier_property("alias"), alias.to_owned());
        add(&tier_property("dirs.path"), folder.display().to_string());
        add(&tier_property("dirs.mediumtype"), alias.to_owned());
        add(&tier_property("dirs.quota"), bytes.to_string());
    }
    // As often as a file of some blocks is written here: a part of a second is not worth a minute's wait.
    add("alluxio.master.persistence.initial.interval", "200ms".to_owned());
    add("alluxio.master.persistence.scheduler.interval", "200ms".to_owned());
    add("alluxio.master.persistence.checker.interval", "200ms".to_owned());
    add("alluxio.job.master.worker.heartbeat.interval", "200ms".to_owned());
    add("alluxio.job.worker.threadpool.size", "2".to_owned());
    // There is one worker, which is awaited anyhow.
    add("alluxio.master.worker.connect.wait.time", "500ms".to_owned());
    add("alluxio.master.worker.timeout", seconds(300.0));
    add("alluxio.job.master.worker.timeout", seconds(300.0));
    add("alluxio.underfs.s3.request.timeout", seconds(120.0));
    add("alluxio.underfs.s3.socket.timeout", seconds(120.0));
    // Several times as many threads as two cores could use, for each server.
    add("alluxio.master.rpc.executor.core.pool.size", "4".to_owned());
    add("alluxio.master.rpc.executor.max.pool.size", "32".to_owned());
    add("alluxio.web.threads", "2".to_owned());
    add("alluxio.master.update.check.enabled", "false".to_owned());
    let mut text = String::new();
    for (name, value) in properties {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{name}={}", value.replace('\\', "\\\\"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceph::S3Keys;

    #[test]
    fn tiers_and_writes_are_what_the_study_says() {
        let bucket = CephBucket {
            name: "underlay".to_owned(),
            endpoint: "http://10.0.0.1:7480".to_owned(),
            authority: None,
            keys: S3Keys { access: "ABC".to_owned(), secret: "hidden".to_owned() },
        };
        let flash = Some((PathBuf::from("/flash/alluxio"), 2 << 30));
        let tiers = CacheTiers { memory: "/scratch/memory".into(), memory_bytes: 1 << 30, flash };
        let blocks = BlockSettings { bytes: 32 << 20, writers: 4, tier_bytes: tiers.memory_bytes };
        let clients = client_properties(Some(Duration::from_secs(10)), true, blocks, 6.0);
        let text = server_properties(
            &bucket,
            &tiers,
            Path::new("/scratch/journal"),
            Path::new("/flash/uploads"),
            &clients,
            6.0,
        );
        for line in [
            "alluxio.user.file.writetype.default=ASYNC_THROUGH",
            "alluxio.user.file.persistence.initial.wait.time=60000ms",
            "alluxio.worker.tieredstore.levels=2",
            "alluxio.tmp.dirs=/flash/uploads",
            "alluxio.worker.tieredstore.level1.dirs.path=/flash/alluxio",
            "alluxio.master.mount.table.root.ufs=s3://underlay/",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert!(!format!("{bucket:?}").contains("hidden"));
        let through = client_properties(None, false, blocks, 1.0);
        assert_eq!(through["alluxio.user.file.writetype.default"], "CACHE_THROUGH");
        let without_flash = CacheTiers { flash: None, ..tiers };
        let text =
            server_properties(&bucket, &without_flash, Path::new("/j"), Path::new("/u"), &through, 1.0);
        assert!(text.contains("alluxio.worker.tieredstore.levels=1\n") && !text.contains("level1"), "{text}");
    }

    #[test]
    fn writes_leave_most_of_small_tier_alone() {
        let reserved =
            |bytes, writers, tier_bytes| BlockSettings { bytes, writers, tier_bytes }.reserved_bytes();
        // As Alluxio itself has it,
        assert_eq!(reserved(128 << 20, 4, 2 << 30), 128 << 20);
        // unless the tier has but a few blocks.
        assert_eq!(reserved(128 << 20, 2, 256 << 20), 32 << 20);
        assert_eq!(reserved(128 << 20, u64::MAX, 64 << 20), MIN_RESERVED_BYTES);
        assert_eq!(reserved(64 << 10, 0, 0), 64 << 10);
    }
}
