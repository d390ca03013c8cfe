//! The files of `media/` that come with Underlay, in the order in which they are listed.

macro_rules! files {
    ($($path:literal,)*) => { &[$(($path, include_str!(concat!("../../../../", $path))),)*] };
}

/// Path and text.
pub(super) const MEDIA: &[(&str, &str)] = files![
    "media/hdd-7200-sata.toml",
    "media/hdd-7200-sas.toml",
    "media/hdd-7200-2tb.toml",
    "media/hdd-7200-4tb.toml",
    "media/hdd-mapreduce.toml",
    "media/hdd-24tb.toml",
    "media/hdd-30tb.toml",
    "media/hdd-hc580.toml",
    "media/hdd-10k-sas.toml",
    "media/hdd-15k-sas.toml",
    "media/travelstar-7k100.toml",
    "media/samsung-f1-1tb.toml",
    "media/ssd-sata.toml",
    "media/ssd-870-evo.toml",
    "media/samsung-860-pro-512.toml",
    "media/samsung-pm883-480.toml",
    "media/intel-s4610-480.toml",
    "media/ioscale-1650.toml",
    "media/sx300-1600.toml",
    "media/ssd-mapreduce.toml",
    "media/nvme-p3700.toml",
    "media/nvme-9100-max.toml",
    "media/nvme-p4500.toml",
    "media/nvme-p4500-4tb.toml",
    "media/nvme-9300-max.toml",
    "media/nvme-p5600.toml",
    "media/nvme-pm9a3.toml",
    "media/nvme-7450-pro.toml",
    "media/nvme-990-pro.toml",
    "media/nvme-p5430.toml",
    "media/nvme-9550-max.toml",
    "media/nvme-7600-max.toml",
    "media/sk-hynix-pe8110-960.toml",
    "media/samsung-pm9a3-960.toml",
    "media/solidigm-p5520-1920.toml",
    "media/micron-7450-pro-960.toml",
    "media/kioxia-cm7-r-3840.toml",
    "media/optane-p4800x.toml",
    "media/optane-p5800x.toml",
    "media/optane-pmem-100.toml",
    "media/ebs-gp2.toml",
    "media/ebs-gp3.toml",
    "media/ebs-gp3-16k.toml",
    "media/ebs-io2.toml",
    "media/ebs-st1.toml",
    "media/azure-p30.toml",
    "media/gcp-pd-ssd.toml",
    "media/nvme-tcp-9300.toml",
    "media/i3-2xlarge.toml",
    "media/i3en-3xlarge.toml",
    "media/m5d-2xlarge.toml",
    "media/i4i-xlarge.toml",
    "media/i7i-2xlarge.toml",
    "media/m8id-4xlarge.toml",
];

/// Path and text.
pub(super) const LAYOUTS: &[(&str, &str)] = files![
    "media/layouts/accumulo-hdd.toml",
    "media/layouts/accumulo-flash.toml",
    "media/layouts/oracle-hdd.toml",
    "media/layouts/oracle-flash.toml",
    "media/layouts/cassandra-local.toml",
    "media/layouts/cassandra-pool.toml",
    "media/layouts/mapreduce-hdd-6.toml",
    "media/layouts/mapreduce-hdd-11.toml",
    "media/layouts/mapreduce-ssd.toml",
    "media/layouts/mapreduce-ssd-split.toml",
    "media/layouts/mapreduce-hybrid.toml",
    "media/layouts/spark-ceph-node.toml",
    "media/layouts/spark-shuffle.toml",
];

pub(super) const MEMORY: (&str, &str) =
    ("media/memory/dram.toml", include_str!("../../../../media/memory/dram.toml"));
