//! The files in a Hadoop configuration directory.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::plan::{HdfsPlan, VolumeChoosing};

/// Of the NameNode, for clients.
const NAMENODE_PORT: u16 = 8020;
pub(crate) const NAMENODE_WEB: SocketAddr = loopback(9870);
/// The ports of the first DataNode; those of each further one are `PORT_STEP` higher.
const DATANODE_WEB_PORT: u16 = 9864;
const DATANODE_PORT: u16 = 9866;
const DATANODE_CALL_PORT: u16 = 9867;
const PORT_STEP: u16 = 100;
/// Clients may ask for blocks as small as this.
const MIN_FILE_BLOCK_BYTES: u64 = 4096;
/// The NameNode stops when its directory has less free space. The default is 100 MiB, which a scaled device may not
/// have.
const NAMENODE_RESERVED_BYTES: u64 = 1 << 20;

/// The user that all processes run as.
const USER: &str = "root";

const USED_SPACE: &str = "org.apache.hadoop.hdfs.server.datanode.fsdataset.impl.ReplicaCachingGetSpaceUsed";

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The address of the file system for clients.
pub(crate) fn uri(plan: &HdfsPlan) -> String {
    format!("hdfs://{}:{NAMENODE_PORT}", plan.address)
}

/// The web address of a DataNode, counted from 0.
pub(crate) fn datanode_web(number: usize) -> SocketAddr {
    loopback(datanode_port(DATANODE_WEB_PORT, number))
}

fn datanode_port(first: u16, number: usize) -> u16 {
    first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX).saturating_mul(PORT_STEP))
}

type HdfsProperties = Vec<(&'static str, String)>;

/// `core-site.xml`
fn core_site(plan: &HdfsPlan) -> HdfsProperties {
    let stretched = |ms: f64| stretched_ms(ms, plan.slow_motion);
    vec![
        ("fs.defaultFS", uri(plan)),
        ("hadoop.tmp.dir", plan.scratch.join("hadoop-tmp").display().to_string()),
        ("ipc.client.rpc-timeout.ms", stretched(120_000.0)),
        ("ipc.ping.interval", stretched(60_000.0)),
        ("ipc.client.connect.timeout", stretched(20_000.0)),
        // Compute the size of a directory from the list of its blocks: the default runs `du`, which reads the storage
        // under test.
        ("fs.getspaceused.classname", USED_SPACE.to_owned()),
        // Retry soon if a server isn't up yet.
        ("ipc.client.connect.retry.interval", "200".to_owned()),
        ("ipc.client.connect.max.retries", "50".to_owned()),
    ]
}

/// `hdfs-site.xml`: what servers and clients must agree on, and what is the same for all DataNodes.
fn hdfs_site(plan: &HdfsPlan) -> HdfsProperties {
    let stretched = |ms: f64| stretched_ms(ms, plan.slow_motion);
    let text = |value: &dyn ToString| value.to_string();
    let mut properties = vec![
        ("dfs.namenode.name.dir", plan.name_directory.display().to_string()),
        ("dfs.namenode.http-address", NAMENODE_WEB.to_string()),
        ("dfs.namenode.https-address", "127.0.0.1:9871".to_owned()),
        ("dfs.datanode.hostname", plan.address.to_string()),
        // There are no other users in this network.
        ("dfs.permissions.enabled", "false".to_owned()),
        ("dfs.replication", text(&plan.replication)),
        ("dfs.replication.max", text(&plan.datanodes.len().max(512))),
        ("dfs.blocksize", text(&plan.block_bytes)),
        ("dfs.namenode.fs-limits.min-block-size", text(&MIN_FILE_BLOCK_BYTES)),
        ("dfs.datanode.synconclose", text(&plan.sync_on_close)),
        // Leave safe mode as soon as every DataNode has registered.
        ("dfs.namenode.safemode.extension", "0".to_owned()),
        ("dfs.namenode.safemode.min.datanodes", text(&plan.datanodes.len())),
        ("dfs.namenode.safemode.recheck.interval", "100".to_owned()),
        ("dfs.heartbeat.interval", "1".to_owned()),
        ("dfs.namenode.resource.du.reserved", text(&NAMENODE_RESERVED_BYTES)),
        // A silent DataNode is no longer chosen after 30 s and counts as dead after 40 s, each times slow motion.
        ("dfs.namenode.heartbeat.recheck-interval", stretched(15_000.0)),
        ("dfs.namenode.stale.datanode.interval", stretched(30_000.0)),
        ("dfs.namenode.avoid.read.stale.datanode", "true".to_owned()),
        ("dfs.namenode.avoid.write.stale.datanode", "true".to_owned()),
        // By default a DataNode twice as busy as the mean is not chosen. With three of them that happens all the time.
        ("dfs.namenode.redundancy.considerLoad", "false".to_owned()),
        // If one of only as many DataNodes as copies dies, there is no replacement: writes should continue without it.
        ("dfs.client.block.write.replace-datanode-on-failure.best-effort", "true".to_owned()),
        ("dfs.client.socket-timeout", stretched(60_000.0)),
        ("dfs.datanode.socket.write.timeout", stretched(480_000.0)),
        ("dfs.client.slow.io.warning.threshold.ms", stretched(30_000.0)),
        ("dfs.datanode.slow.io.warning.threshold.ms", stretched(1_000.0)),
        ("dfs.datanode.bp-ready.timeout", seconds(20.0, plan.slow_motion)),
        // A copy that failed because its DataNode went is tried again after this time, and a file system comes to rest
        // no sooner. Scaled blocks are copied in less than a second; the default is five minutes.
        ("dfs.namenode.reconstruction.pending.timeout-sec", seconds(30.0, plan.slow_motion)),
        ("dfs.datanode.disk.check.timeout", format!("{}s", seconds(600.0, plan.slow_motion))),
        // Background scanners would read the storage at arbitrary times.
        ("dfs.datanode.scan.period.hours", "-1".to_owned()),
        ("dfs.datanode.directoryscan.interval", "-1".to_owned()),
        // Count every file operation per directory, for the figures.
        ("dfs.datanode.fileio.profiling.sampling.percentage", "100".to_owned()),
        // The default is 1 GiB, more than a scaled device may have.
        ("dfs.datanode.round-robin-volume-choosing-policy.additional-available-space", "0".to_owned()),
    ];
    if !plan.address.is_loopback() {
        // Nobody answers for the name of an address that is the run's own.
        properties.push(("dfs.namenode.datanode.registration.ip-hostname-check", "false".to_owned()));
    }
    if let Some(bytes) = plan.short_circuit_bytes {
        properties.extend([
            ("dfs.client.read.shortcircuit", "true".to_owned()),
            // The newer implementation passes file descriptors over a socket, which needs Hadoop's native library.
            ("dfs.client.use.legacy.blockreader.local", "true".to_owned()),
            ("dfs.block.local-path-access.user", USER.to_owned()),
            ("dfs.client.read.shortcircuit.buffer.size", text(&bytes)),
        ]);
    }
    if let VolumeChoosing::AvailableSpace { threshold_bytes } = plan.volume_choosing {
        const POLICY: &str =
            "org.apache.hadoop.hdfs.server.datanode.fsdataset.AvailableSpaceVolumeChoosingPolicy";
        const THRESHOLD: &str =
            "dfs.datanode.available-space-volume-choosing-policy.balanced-space-threshold";
        properties.push(("dfs.datanode.fsdataset.volume.choosing.policy", POLICY.to_owned()));
        properties.push((THRESHOLD, text(&threshold_bytes)));
    }
    properties
}

/// The properties of a single DataNode, as arguments of its program.
pub(crate) fn datanode_arguments(plan: &HdfsPlan, number: usize) -> Vec<String> {
    let address = |first: u16| SocketAddr::from((plan.address, datanode_port(first, number))).to_string();
    let directories = plan.datanodes.get(number).map(Vec::as_slice).unwrap_or_default();
    let directories = directories
        .iter()
        .map(|directory| format!("[{}]{}", directory.storage_type.name(), directory.path.display()));
    let own = [
        ("dfs.datanode.address", address(DATANODE_PORT)),
        ("dfs.datanode.ipc.address", address(DATANODE_CALL_PORT)),
        ("dfs.datanode.http.address", datanode_web(number).to_string()),
        ("dfs.datanode.data.dir", directories.collect::<Vec<_>>().join(",")),
    ];
    own.into_iter().flat_map(|(name, value)| ["-D".to_owned(), format!("{name}={value}")]).collect()
}

fn stretched_ms(ms: f64, slow_motion: f64) -> String {
    format!("{:.0}", (ms * slow_motion).ceil().min(f64::from(i32::MAX)))
}

fn seconds(s: f64, slow_motion: f64) -> String {
    stretched_ms(s, slow_motion)
}

/// Creates the configuration directory `folder`.
pub(crate) fn write(plan: &HdfsPlan, folder: &Path) -> std::io::Result<()> {
    // The web servers don't start without folders for their pages on the class path, and the jars have none.
    for pages in ["hdfs", "datanode"] {
        std::fs::create_dir_all(folder.join("webapps").join(pages))?;
    }
    for (name, text) in [
        ("core-site.xml", properties_file(&core_site(plan))),
        ("hdfs-site.xml", properties_file(&hdfs_site(plan))),
        ("log4j.properties", LOGGING.to_owned()),
        // By default figures are refreshed every ten seconds only.
        ("hadoop-metrics2.properties", "*.period=1\n".to_owned()),
    ] {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// Properties in Hadoop's XML format.
pub(crate) fn properties_file<N: AsRef<str>, V: AsRef<str>>(properties: &[(N, V)]) -> String {
    let mut text =
        String::from("<!-- Written by underlay for one run; changes are lost. -->\n<configuration>\n");
    for (name, value) in properties {
        let (name, value) = (escaped(name.as_ref()), escaped(value.as_ref()));
        let _ = writeln!(text, "  <property><name>{name}</name><value>{value}</value></property>");
    }
    text.push_str("</configuration>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The system property for the log level. It is `ERROR` for tools, since their output is parsed.
pub(crate) const LOG_LEVEL: &str = "underlay.log.level";
/// Logs go to the standard error, to keep them apart from what a tool prints. Messages about single blocks are left
/// out: they would be most of the log.
const LOGGING: &str = "\
underlay.log.level=INFO
log4j.rootLogger=${underlay.log.level},out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%-5p %d{ISO8601} %c{1} %m%n
log4j.logger.http.requests=WARN
log4j.logger.BlockStateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.StateChange=WARN
log4j.logger.org.apache.hadoop.hdfs.server.datanode.DataNode.clienttrace=WARN
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.logger.org.apache.hadoop.security.authentication.server.AuthenticationFilter=ERROR
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn small_file_system_undilated() {
        insta::assert_snapshot!("small-hdfs", properties_file(&hdfs_site(&plan())));
        insta::assert_snapshot!("small-core", properties_file(&core_site(&plan())));
        insta::assert_snapshot!("small-datanode", datanode_arguments(&plan(), 2).join("\n"));
    }

    #[test]
    fn slow_motion_stretches_what_waits() {
        let mut slow = plan();
        slow.slow_motion = 8.0;
        slow.volume_choosing = VolumeChoosing::AvailableSpace { threshold_bytes: 1 << 20 };
        let value = |name: &str| {
            let all = [hdfs_site(&slow), core_site(&slow)].concat();
            all.into_iter().find(|(key, _)| *key == name).unwrap().1
        };
        assert_eq!(value("dfs.client.socket-timeout"), "480000");
        assert_eq!(value("ipc.client.rpc-timeout.ms"), "960000");
        assert_eq!(value("dfs.datanode.disk.check.timeout"), "4800s");
        assert_eq!(
            value("dfs.datanode.available-space-volume-choosing-policy.balanced-space-threshold"),
            "1048576"
        );
        slow.slow_motion = 1e9;
        let longest = hdfs_site(&slow).into_iter().find(|(key, _)| *key == "dfs.client.socket-timeout");
        assert_eq!(longest.unwrap().1, i32::MAX.to_string(), "Hadoop keeps it in 32 bits");
    }

    #[test]
    fn short_circuit_reads_need_no_native_library() {
        let mut short = plan();
        short.short_circuit_bytes = Some(36 << 10);
        let (all, before) = (hdfs_site(&short), hdfs_site(&plan()));
        let added: Vec<String> = all
            .into_iter()
            .filter(|property| !before.contains(property))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(
            added,
            [
                "dfs.client.read.shortcircuit=true",
                "dfs.client.use.legacy.blockreader.local=true",
                "dfs.block.local-path-access.user=root",
                "dfs.client.read.shortcircuit.buffer.size=36864",
            ]
        );
    }

    #[test]
    fn datanodes_share_no_port() {
        let mut ports = BTreeSet::new();
        for number in 0..super::super::plan::MAX_DATANODES {
            for first in [DATANODE_WEB_PORT, DATANODE_PORT, DATANODE_CALL_PORT] {
                let port = datanode_port(first, number);
                assert!(port < 32_768, "the kernel may give {port} to anyone");
                assert!(ports.insert(port), "{port}");
            }
        }
    }

    #[test]
    fn values_are_escaped() {
        let text = properties_file(&[("a", "1 < 2 & 3 > 2")]);
        assert!(text.contains("<value>1 &lt; 2 &amp; 3 &gt; 2</value>"), "{text}");
    }
}
