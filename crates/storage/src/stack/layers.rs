//! From nodes to layers, and what layers tell of themselves.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use underlay_sync::Mutex;

use underlay_record::LayerActivity;

use super::remote::{LayerMetric, RecordedRemote, RemoteOpener};
use super::{
    PacingMode, Stack, StackDevice, StackError, StackNode, StackSpec, device_seed, invalid, open_device,
};
use crate::clock::ModelClock;
use crate::device::BlockDevice;
use crate::layers::cache::CacheSettings;
use crate::layers::compress::CompressSettings;
use crate::layers::mirror::MirrorSettings;
use crate::layers::workers::WorkerThreads;
use crate::layers::{CacheLayer, CompressLayer, LinkLayer, Mirror, Stripe};

/// Threads that compress and decompress.
const WORKERS: usize = 2;

/// The context for opening every node of a volume.
pub(super) struct OpenContext<'a> {
    pub volume: &'a str,
    pub seed: u64,
    pub clock: &'a Arc<dyn ModelClock>,
    pub workers: &'a WorkerThreads,
    pub opener: &'a dyn RemoteOpener,
}

/// The threads that a stack needs: none if nothing in it computes.
pub(super) fn workers(spec: &StackSpec) -> io::Result<WorkerThreads> {
    fn computes(node: &StackNode) -> bool {
        matches!(node, StackNode::Compress { .. }) || node.members().into_iter().any(computes)
    }
    match spec.volumes.iter().any(|volume| computes(&volume.root)) {
        true => WorkerThreads::start(WORKERS),
        false => Ok(WorkerThreads::inline()),
    }
}

fn count(name: &'static str, value: u64) -> LayerMetric {
    LayerMetric { name, value, counts: true }
}

fn level(name: &'static str, value: u64) -> LayerMetric {
    LayerMetric { name, value, counts: false }
}

type MetricReader = Box<dyn Fn() -> Vec<LayerMetric> + Send + Sync>;
type BeginCallback = Box<dyn Fn() + Send + Sync>;

/// The source of a layer's figures.
pub(super) struct LayerMetrics {
    name: String,
    kind: &'static str,
    read: MetricReader,
    /// Has it forget what is no count.
    begin: Option<BeginCallback>,
    began: Mutex<BTreeMap<&'static str, u64>>,
}

impl LayerMetrics {
    pub(super) fn begin_measurement(&self) {
        if let Some(begin) = &self.begin {
            begin();
        }
        let figures = (self.read)().into_iter().map(|figure| (figure.name, figure.value)).collect();
        *self.began.lock() = figures;
    }

    fn activity(&self) -> LayerActivity {
        let began = self.began.lock();
        let difference = |figure: LayerMetric| {
            let before = if figure.counts { began.get(figure.name).copied().unwrap_or(0) } else { 0 };
            (figure.name.to_owned(), figure.value.saturating_sub(before) as f64)
        };
        let figures = (self.read)().into_iter().map(difference).collect();
        LayerActivity { server: None, name: self.name.clone(), kind: self.kind.to_owned(), figures }
    }
}

impl Stack {
    /// How every layer that has something to tell fares: what it counted since `begin_measurement`, and its state
    /// now.
    pub fn layers(&self) -> Vec<LayerActivity> {
        self.layers.iter().map(LayerMetrics::activity).collect()
    }

    fn add_layer(&mut self, opening: &OpenContext<'_>, kind: &'static str, read: MetricReader) {
        let same = self.layers.iter().filter(|layer| layer.kind == kind).count();
        let name = format!("{}.{kind}.{same}", opening.volume);
        self.layers.push(LayerMetrics { name, kind, read, begin: None, began: Mutex::default() });
    }

    /// Layers read what they keep as they are opened: nothing takes time before all are.
    pub(super) fn open_node(
        &mut self,
        node: &StackNode,
        opening: &OpenContext<'_>,
    ) -> Result<Arc<dyn BlockDevice>, StackError> {
        let refused = |problem: String| invalid(opening.volume, problem);
        match node {
            StackNode::Device(device) => {
                // By its place: each device is as random as before when the same stack is opened again.
                let seed = device_seed(opening.seed, self.devices.len() as u64);
                let faulty = open_device(device, seed, opening.clock)?;
                let paced = faulty.paced().clone();
                paced.set_pace(PacingMode::Immediate);
                self.devices.push(StackDevice {
                    spec: device.clone(),
                    trace: Mutex::default(),
                    paced,
                    faulty: faulty.clone(),
                    description: device.describe(),
                });
                Ok(Arc::new(faulty))
            }
            StackNode::Remote(spec) => {
                let opened = opening.opener.open(spec).map_err(|problem| invalid(&spec.name, problem))?;
                let remote = Arc::new(RecordedRemote::new(opened.device, spec, opening.clock));
                let (metrics_source, begun) = (Arc::clone(&opened.connection), opened.connection);
                // Names of remote devices are unique as they are, so these figures need no number in theirs.
                self.layers.push(LayerMetrics {
                    name: spec.name.clone(),
                    kind: "remote",
                    read: Box::new(move || metrics_source.figures()),
                    begin: Some(Box::new(move || begun.begin_measurement())),
                    began: Mutex::default(),
                });
                self.remotes.push(Arc::clone(&remote));
                Ok(remote)
            }
            StackNode::Stripe { chunk_bytes, members } => {
                let members = self.open_nodes(members, opening)?;
                Ok(Arc::new(Stripe::new(members, *chunk_bytes).map_err(|error| refused(error.to_string()))?))
            }
            StackNode::Mirror { members } => {
                let members = self.open_nodes(members, opening)?;
                let mirror = Mirror::open(members, MirrorSettings::default());
                let mirror = Arc::new(mirror.map_err(|error| refused(error.to_string()))?);
                let metrics_source = Arc::clone(&mirror);
                let read = move || {
                    let health = metrics_source.health();
                    vec![
                        level("members_in_sync", health.in_sync as u64),
                        level("members_out", health.out as u64),
                        level("members_resyncing", health.resyncing as u64),
                        level("degraded", u64::from(health.out + health.resyncing > 0)),
                        count("resynced_bytes", health.resynced_bytes),
                    ]
                };
                self.add_layer(opening, "mirror", Box::new(read));
                self.mirrors.push(Arc::clone(&mirror));
                Ok(mirror)
            }
            StackNode::Compress { codec, chunk_bytes, capacity_bytes, member } => {
                let settings = CompressSettings {
                    codec: *codec,
                    chunk_bytes: *chunk_bytes,
                    capacity_bytes: *capacity_bytes,
                };
                let member = self.open_node(member, opening)?;
                let compress = CompressLayer::open(member, settings, opening.workers.clone());
                let compress = Arc::new(compress.map_err(|error| refused(error.to_string()))?);
                let metrics_source = Arc::clone(&compress);
                let read = move || {
                    let figures = metrics_source.figures();
                    vec![
                        level("logical_bytes", figures.logical_bytes),
                        level("stored_bytes", figures.stored_bytes),
                        level("used_bytes", figures.used_bytes),
                        level("space_bytes", figures.space_bytes),
                    ]
                };
                self.add_layer(opening, "compress", Box::new(read));
                Ok(compress)
            }
            StackNode::Cache { mode, fast, slow, bypass_bytes, dirty_percent } => {
                let settings =
                    CacheSettings { mode: *mode, bypass_bytes: *bypass_bytes, dirty_percent: *dirty_percent };
                let (fast, slow) = (self.open_node(fast, opening)?, self.open_node(slow, opening)?);
                let cache = CacheLayer::open(fast, slow, settings);
                let cache = Arc::new(cache.map_err(|error| refused(error.to_string()))?);
                let metrics_source = Arc::clone(&cache);
                let read = move || {
                    let figures = metrics_source.figures();
                    vec![
                        count("read_hits", figures.read_hits),
                        count("read_misses", figures.read_misses),
                        count("write_hits", figures.write_hits),
                        count("write_misses", figures.write_misses),
                        count("written_back_bytes", figures.written_back_bytes),
                        level("cached_bytes", figures.cached_bytes),
                        level("dirty_bytes", figures.dirty_bytes),
                    ]
                };
                self.add_layer(opening, "cache", Box::new(read));
                Ok(cache)
            }
            StackNode::Link { bandwidth_mb_s, latency_us, member } => {
                let member = self.open_node(member, opening)?;
                let link = LinkLayer::new(member, *bandwidth_mb_s, *latency_us, Arc::clone(opening.clock))
                    .map_err(|error| refused(error.to_string()))?;
                // As for a device: what the layers above read while they open takes no time.
                link.line().set_pace(PacingMode::Immediate);
                self.lines.push(link.line().clone());
                Ok(Arc::new(link))
            }
        }
    }

    fn open_nodes(
        &mut self,
        nodes: &[StackNode],
        opening: &OpenContext<'_>,
    ) -> Result<Vec<Arc<dyn BlockDevice>>, StackError> {
        nodes.iter().map(|node| self.open_node(node, opening)).collect()
    }
}
