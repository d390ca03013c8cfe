//! The file that all programs of a cluster read.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::plan::CephPlan;
use crate::certificate::ServerCertificate;

/// Everything of the cluster listens at this address of its namespace, except for the gateway.
pub(super) const MONITOR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6789);
pub(super) const GATEWAY_PORT: u16 = 7480;
pub(super) const GATEWAY: &str = "client.rgw.underlay";
const HEARTBEAT_GRACE_S: f64 = 20.0;
/// Of lines that wait to be written to the log of requests, some hundred thousand: what does not fit the gateway drops.
const LOG_BACKLOG_BYTES: u64 = 64 << 20;
const YEAR_S: u64 = 365 * 86_400;
/// Placement groups of a pool, for each OSD: objects are spread over them, and OSDs over those.
const GROUPS_PER_OSD: usize = 8;
/// The modules that the manager has in Debian's packages. A measured cluster needs none of them, and loading them takes
/// seconds of CPU.
const MODULES: &str = "alerts balancer crash dashboard devicehealth diskprediction_local influx insights iostat k8sevents localpool \
    mirroring nfs orchestrator osd_perf_query osd_support pg_autoscaler progress prometheus rbd_support restful rook selftest \
    snap_schedule stats status telegraf telemetry test_orchestrator volumes zabbix";
/// Logs of each request that are switched off.
const SILENT: [&str; 10] =
    ["mon", "osd", "bluestore", "bluefs", "bdev", "rocksdb", "paxos", "mgr", "rgw", "ms"];

/// The text of `ceph.conf`. `id` is the cluster's.
pub(super) fn text(
    plan: &CephPlan,
    id: &str,
    block_bytes: &[u64],
    certificate: Option<&ServerCertificate>,
) -> String {
    let mut text = String::from("[global]\n");
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{name} = {value}");
    };
    let folder = |name: &str| plan.scratch.join(name).display().to_string();
    add("fsid", &id);
    add("mon host", &format!("v1:{MONITOR}"));
    add("mon initial members", &"a");
    add("public addr", &MONITOR.ip());
    // Nobody else is in this network.
    for part in ["cluster", "service", "client"] {
        add(&format!("auth {part} required"), &"none");
    }
    add("ms bind msgr2", &false);
    // Their paths would have to be short, and nobody asks there.
    add("admin socket", &"");
    add("run dir", &folder("run"));
    add("crash dir", &folder("run"));
    add("log file", &folder("$name.log"));
    // Otherwise the cluster's log would be in `/var/log/ceph`, where a cluster of the host's own has its.
    add("mon cluster log file", &folder("cluster.log"));
    for part in SILENT {
        add(&format!("debug {part}"), &"0/0");
    }
    let stretched_s = |s: f64| (s * plan.slow_motion.max(1.0)).ceil().min(86_400.0);
    add("osd heartbeat grace", &stretched_s(HEARTBEAT_GRACE_S));
    // When an OSD that is away counts as lost, and when one that waits for its device gives up: Ceph's own times.
    add("mon osd down out interval", &stretched_s(600.0));
    add("osd op thread timeout", &stretched_s(15.0));
    add("osd op thread suicide timeout", &stretched_s(150.0));
    add("osd op complaint time", &(30.0 * plan.slow_motion.max(1.0)));
    // All OSDs are on one host.
    add("osd crush chooseleaf type", &0);
    add("osd pool default size", &plan.replication);
    add("osd pool default min size", &1);
    add("mon allow pool size one", &true);
    add("mon max pg per osd", &1000);
    let groups = (GROUPS_PER_OSD * plan.osds.len()).next_power_of_two();
    add("osd pool default pg num", &groups);
    add("osd pool default pgp num", &groups);
    add("osd pool default pg autoscale mode", &"off");
    text.push_str("[mon]\n");
    add_to(&mut text, "mon data", &folder("monitor"));
    // It keeps a few megabytes, and would refuse to start on a file system that is nearly full by its share alone.
    add_to(&mut text, "mon data avail crit", &0);
    add_to(&mut text, "mon data avail warn", &0);
    text.push_str("[mgr]\n");
    add_to(&mut text, "mgr data", &folder("manager"));
    add_to(&mut text, "mgr initial modules", &"");
    add_to(&mut text, "mgr disabled modules", &MODULES);
    text.push_str("[osd]\n");
    add_to(&mut text, "osd objectstore", &"bluestore");
    // The cluster's map has them already. One that puts itself there may ask before it knows which cluster it is in
    // ("wrong fsid"), and ends.
    add_to(&mut text, "osd crush update on start", &false);
    add_to(&mut text, "osd class update on start", &false);
    add_to(&mut text, "bluestore block create", &true);
    add_to(&mut text, "bluestore cache autotune", &false);
    add_to(&mut text, "bluestore cache size", &plan.memory.cache_bytes);
    add_to(
        &mut text,
        "bluestore debug enforce settings",
        if plan.rotational { &"hdd" as &dyn std::fmt::Display } else { &"ssd" },
    );
    // Background scrubbing would read the storage at arbitrary times.
    for interval in ["osd scrub min interval", "osd scrub max interval", "osd deep scrub interval"] {
        add_to(&mut text, interval, &YEAR_S);
    }
    for (number, (directory, bytes)) in plan.osds.iter().zip(block_bytes).enumerate() {
        let _ = writeln!(text, "[osd.{number}]");
        add_to(&mut text, "osd data", &directory.display());
        add_to(&mut text, "bluestore block size", bytes);
    }
    let _ = writeln!(text, "[{GATEWAY}]");
    add_to(&mut text, "rgw data", &folder("gateway"));
    // Without tcp_nodelay each answer waits some 40 ms for an acknowledgement.
    let place = format!("endpoint=0.0.0.0:{GATEWAY_PORT} tcp_nodelay=1");
    let frontend = match certificate {
        None => format!("beast {place}"),
        Some(certificate) => format!(
            "beast ssl_{place} ssl_certificate={} ssl_private_key={}",
            certificate.chain().display(),
            certificate.key().display()
        ),
    };
    add_to(&mut text, "rgw frontends", &frontend);
    add_to(&mut text, "rgw enable ops log", &true);
    add_to(&mut text, "rgw ops log rados", &false);
    add_to(&mut text, "rgw ops log file path", &folder("requests.log"));
    add_to(&mut text, "rgw ops log data backlog", &LOG_BACKLOG_BYTES);
    text
}

fn add_to(text: &mut String, name: &str, value: &dyn std::fmt::Display) {
    // Writing to a string can't fail.
    let _ = writeln!(text, "{name} = {value}");
}

/// Where the gateway writes down each request.
pub(super) fn request_log(scratch: &Path) -> std::path::PathBuf {
    scratch.join("requests.log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceph::CephMemory;

    #[test]
    fn osds_have_own_place_and_size() {
        let plan = CephPlan {
            system: "test",
            osds: vec!["/a/ceph/osd-0".into(), "/b/ceph/osd-1".into()],
            replication: 2,
            rotational: false,
            memory: CephMemory::new(2 << 30, 2),
            space_share: 0.9,
            tls: None,
            scratch: "/scratch".into(),
            slow_motion: 4.0,
        };
        let text = text(&plan, "00000000-0000-4000-8000-000000000000", &[1 << 32, 1 << 33], None);
        for expected in [
            "osd pool default size = 2\n",
            "osd heartbeat grace = 80\n",
            "osd crush update on start = false\n",
            "osd op thread suicide timeout = 600\n",
            "mon cluster log file = /scratch/cluster.log\n",
            "osd pool default pg num = 16\n",
            "bluestore debug enforce settings = ssd\n",
            "[osd.1]\nosd data = /b/ceph/osd-1\nbluestore block size = 8589934592\n",
            "rgw ops log file path = /scratch/requests.log\n",
            "rgw ops log data backlog = 67108864\n",
            "rgw frontends = beast endpoint=0.0.0.0:7480 tcp_nodelay=1\n",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        let folder = tempfile::TempDir::new().unwrap();
        let certificate = ServerCertificate::make(folder.path(), std::net::Ipv4Addr::LOCALHOST).unwrap();
        let secured = super::text(&plan, "an id", &[1 << 32, 1 << 33], Some(&certificate));
        assert!(
            secured.contains("beast ssl_endpoint=0.0.0.0:7480 tcp_nodelay=1 ssl_certificate="),
            "{secured}"
        );
    }
}
