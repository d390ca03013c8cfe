//! Servers and the load for `benches/volume`: a bare TCP echo, a null device and volumes of a pool over NVMe/TCP.
//!
//! ```text
//! volume_bench echo                          answers as many bytes as it is asked for
//! volume_bench serve null|pool|pool-lz4      serves a namespace; prints its address and subsystem, ends with its input.
//!                                            `pool` is on null devices, `pool-lz4` on memory, since it needs its bytes
//! volume_bench load ADDRESS NQN  OPTIONS     asks a namespace; prints the result as JSON
//! volume_bench load-echo ADDRESS OPTIONS     asks an echo
//! ```
//! Options: `--read` or `--write`, `--bytes N`, `--depth N`, `--queues N`, `--seconds N`.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use underlay_sync::{Condvar, Mutex};

use hdrhistogram::Histogram;
use underlay_nvme::initiator::{ControllerOptions, NvmeController, RemoteDevice};
use underlay_nvme::target::{AllowedHosts, NamespaceConfig, NvmeTarget, SubsystemConfig, TargetConfig};
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::layers::workers::WorkerThreads;
use underlay_storage::stack::{BackingSpec, DeviceSpec, Stack, StackNode, StackSpec, VolumeSpec};
use underlay_volume::pool::label::{MemberLabel, lay_out};
use underlay_volume::pool::{self, PoolSettings, VolumePool};

type Failure = Box<dyn std::error::Error>;

const LOOPBACK: &str = "127.0.0.1:0";
const NQN: &str = "nqn.2025-11.internal.underlay:bench:volume";
const VOLUME_BYTES: u64 = 256 << 20;
const MEMBERS: usize = 2;
/// As a command capsule of NVMe/TCP and its answer have, without data.
const REQUEST_BYTES: usize = 72;
const REPLY_BYTES: usize = 24;
/// Before anything counts.
const WARM_UP: Duration = Duration::from_millis(300);
const MAX_US: u64 = 60_000_000;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["echo"] => echo(),
        ["serve", "null"] => serve(Arc::new(Null), None),
        ["serve", "pool"] => serve_volume(null_members()?, None),
        ["serve", "pool-lz4"] => {
            let memory = memory()?;
            serve_volume(memory.volumes().to_vec(), Some(CompressionCodec::Lz4))
        }
        ["load", address, nqn, options @ ..] => load(address, nqn, &Load::parse(options)?),
        ["load-echo", address, options @ ..] => load_echo(address, &Load::parse(options)?),
        _ => Err("usage: volume_bench echo | serve null|pool|pool-lz4 | load ADDRESS NQN OPTIONS | load-echo ADDRESS OPTIONS".into()),
    }
}

/// Completes at once and keeps nothing.
struct Null;

impl BlockDevice for Null {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: VOLUME_BYTES, block_bytes: 4096, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(Ok(match request {
            DeviceRequest::Read { buffer, .. } => buffer,
            _ => Vec::new(),
        }));
    }
}

fn serve(device: Arc<dyn BlockDevice>, pool: Option<&VolumePool>) -> Result<(), Failure> {
    let target =
        NvmeTarget::start(TargetConfig { listen: vec![LOOPBACK.parse()?], ..TargetConfig::default() })?;
    let subsystem = target.subsystems().add(SubsystemConfig {
        nqn: NQN.to_owned(),
        serial_number: "bench".to_owned(),
        hosts: AllowedHosts::Any(None),
    })?;
    subsystem.add_namespace(NamespaceConfig { nsid: 1, uuid: [7; 16], device })?;
    println!("{} {NQN}", target.addresses()[0]);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    target.stop();
    Ok(pool.map_or(Ok(()), VolumePool::close)?)
}

/// A null device that keeps its beginning, where a pool has its label and its journal.
struct NullMember {
    kept: Mutex<Vec<u8>>,
}

impl NullMember {
    fn carry_out(&self, request: DeviceRequest) -> DeviceCompletion {
        request.check(&self.geometry())?;
        let (offset_bytes, length_bytes) = request.extent();
        let mut stored = self.kept.lock();
        let end = (offset_bytes + length_bytes).min(stored.len() as u64);
        let range = offset_bytes.min(end) as usize..end as usize;
        Ok(match request {
            DeviceRequest::Read { mut buffer, .. } => {
                buffer[..range.len()].copy_from_slice(&stored[range]);
                buffer
            }
            DeviceRequest::Write { data, .. } => {
                stored[range.clone()].copy_from_slice(&data[..range.len()]);
                Vec::new()
            }
            DeviceRequest::Flush => Vec::new(),
            DeviceRequest::Discard { .. } => {
                stored[range].fill(0);
                Vec::new()
            }
        })
    }
}

impl BlockDevice for NullMember {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: VOLUME_BYTES, block_bytes: 4096, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(self.carry_out(request));
    }
}

fn null_members() -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
    let labels = lay_out(&[VOLUME_BYTES; MEMBERS], None, 0)?;
    let member = |label: &MemberLabel| -> Arc<dyn BlockDevice> {
        Arc::new(NullMember { kept: Mutex::new(vec![0; label.data_start_bytes() as usize]) })
    };
    Ok(labels.iter().map(member).collect())
}

fn memory() -> Result<Stack, Failure> {
    let device = |index| DeviceSpec::new(format!("memory.{index}"), None, VOLUME_BYTES, BackingSpec::Memory);
    let volumes = (0..MEMBERS)
        .map(|index| VolumeSpec::new(format!("{index}"), StackNode::Device(device(index))))
        .collect();
    Ok(Stack::open(&StackSpec { volumes, dilation: 1.0, seed: 1 })?)
}

fn serve_volume(
    members: Vec<Arc<dyn BlockDevice>>,
    compress: Option<CompressionCodec>,
) -> Result<(), Failure> {
    let settings = PoolSettings { workers: WorkerThreads::start(2)?, ..PoolSettings::default() };
    let pool = VolumePool::open(members, settings)?;
    let volume =
        pool.create("volume", &pool::VolumeSpec { compress, ..pool::VolumeSpec::new(VOLUME_BYTES) })?;
    // Written once, half of it compressible: what is not there is read for nothing.
    let mut data = vec![0; 1 << 20];
    for (index, word) in data.chunks_exact_mut(8).enumerate().filter(|(index, _)| index % 512 < 256) {
        word.copy_from_slice(&(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    for offset_bytes in (0..VOLUME_BYTES).step_by(data.len()) {
        volume.execute(DeviceRequest::Write { offset_bytes, data: data.clone(), fua: false })?;
    }
    volume.execute(DeviceRequest::Flush)?;
    serve(Arc::new(volume), Some(&pool))
}

/// What is asked.
#[derive(Clone, Debug)]
struct Load {
    is_write: bool,
    bytes: usize,
    depth: usize,
    queues: u16,
    duration: Duration,
}

impl Load {
    fn parse(options: &[&str]) -> Result<Load, Failure> {
        let mut load =
            Load { is_write: false, bytes: 4096, depth: 1, queues: 1, duration: Duration::from_secs(3) };
        let mut options = options.iter();
        while let Some(&option) = options.next() {
            let mut value = || options.next().ok_or(format!("{option} needs a value"));
            match option {
                "--read" => load.is_write = false,
                "--write" => load.is_write = true,
                "--bytes" => load.bytes = value()?.parse()?,
                "--depth" => load.depth = value()?.parse()?,
                "--queues" => load.queues = value()?.parse()?,
                "--seconds" => load.duration = Duration::from_secs_f64(value()?.parse()?),
                other => return Err(format!("{other} is no option").into()),
            }
        }
        Ok(load)
    }
}

/// A load's result, and what goes on with it.
struct Run {
    load: Load,
    counts_from: Instant,
    until: Instant,
    /// Requests so far, those of the warm-up among them.
    number: AtomicU64,
    latencies_ns: Mutex<Histogram<u64>>,
    failed: Mutex<Option<DeviceError>>,
    under_way: Mutex<usize>,
    over: Condvar,
}

impl Run {
    fn new(load: &Load) -> Result<Run, Failure> {
        let counts_from = Instant::now() + WARM_UP;
        Ok(Run {
            load: load.clone(),
            counts_from,
            until: counts_from + load.duration,
            number: AtomicU64::new(0),
            latencies_ns: Mutex::new(Histogram::new_with_bounds(100, MAX_US * 1000, 3)?),
            failed: Mutex::default(),
            under_way: Mutex::new(0),
            over: Condvar::new(),
        })
    }

    fn record(&self, began: Instant, now: Instant) {
        if began >= self.counts_from && now < self.until {
            let ns = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
            self.latencies_ns.lock().saturating_record(ns);
        }
    }

    /// Blocks in an order that no cache can guess, whole requests apart.
    fn next(&self, buffer: Vec<u8>) -> DeviceRequest {
        let number = self.number.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
        let offset_bytes = number % (VOLUME_BYTES / self.load.bytes as u64) * self.load.bytes as u64;
        if self.load.is_write {
            let data = if buffer.len() == self.load.bytes { buffer } else { vec![0x5a; self.load.bytes] };
            return DeviceRequest::Write { offset_bytes, data, fua: false };
        }
        let buffer = if buffer.len() == self.load.bytes { buffer } else { vec![0; self.load.bytes] };
        DeviceRequest::Read { offset_bytes, buffer }
    }

    fn tell(&self) -> Result<(), Failure> {
        if let Some(error) = self.failed.lock().take() {
            return Err(error.into());
        }
        let latencies = self.latencies_ns.lock();
        let (requests, seconds) = (latencies.len(), self.load.duration.as_secs_f64());
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        println!(
            "{}",
            serde_json::json!({
                "requests": requests,
                "all_requests": self.number.load(Ordering::Relaxed),
                "iops": requests as f64 / seconds,
                "mb_s": requests as f64 * self.load.bytes as f64 / 1e6 / seconds,
                "mean_us": latencies.mean() / 1e3,
                "p50_us": us(0.5),
                "p99_us": us(0.99),
            })
        );
        Ok(())
    }
}

fn load(address: &str, nqn: &str, load: &Load) -> Result<(), Failure> {
    let options = ControllerOptions {
        queues: load.queues,
        loss_timeout: Duration::from_secs(1),
        ..ControllerOptions::new(address, nqn)
    };
    let controller = NvmeController::connect(options)?;
    let device = controller.namespace(1)?;
    let run = Arc::new(Run::new(load)?);
    if load.depth == 1 {
        let mut buffer = Vec::new();
        loop {
            let request = run.next(buffer);
            let began = Instant::now();
            if began >= run.until {
                break;
            }
            buffer = device.execute(request)?;
            run.record(began, Instant::now());
        }
    } else {
        *run.under_way.lock() = load.depth;
        for _ in 0..load.depth {
            step(&run, &device, Vec::new());
        }
        let mut under_way = run.under_way.lock();
        while *under_way > 0 {
            under_way = run.over.wait(under_way);
        }
    }
    run.tell()
}

/// One request, and the next when it is answered.
fn step(run: &Arc<Run>, device: &RemoteDevice, buffer: Vec<u8>) {
    let began = Instant::now();
    if began >= run.until {
        return finish(run);
    }
    let (again, next) = (Arc::clone(run), device.clone());
    let done = move |completion: DeviceCompletion| match completion {
        Ok(buffer) => {
            again.record(began, Instant::now());
            step(&again, &next, buffer);
        }
        Err(error) => {
            *again.failed.lock() = Some(error);
            finish(&again);
        }
    };
    device.submit(run.next(buffer), Box::new(done));
}

fn finish(run: &Run) {
    *run.under_way.lock() -= 1;
    run.over.notify_all();
}

/// A request of the echo: how many bytes follow it, and how many are wanted.
fn echo_request(load: &Load) -> [u8; REQUEST_BYTES] {
    let (follow, wanted) = if load.is_write { (load.bytes as u64, 0) } else { (0, load.bytes as u64) };
    let mut request = [0; REQUEST_BYTES];
    request[..8].copy_from_slice(&follow.to_le_bytes());
    request[8..16].copy_from_slice(&wanted.to_le_bytes());
    request
}

fn echo() -> Result<(), Failure> {
    let listener = TcpListener::bind(LOOPBACK)?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = answer(stream);
            });
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(1 << 20, stream);
    let (mut request, mut received, mut replies) = ([0; REQUEST_BYTES], Vec::new(), Vec::new());
    loop {
        reader.read_exact(&mut request)?;
        let word = |offset: usize| {
            u64::from_le_bytes(request[offset..offset + 8].try_into().unwrap_or_default()) as usize
        };
        received.resize(word(0), 0);
        reader.read_exact(&mut received)?;
        replies.resize(replies.len() + REPLY_BYTES + word(8), 0);
        // Answers to what came together go together.
        if reader.buffer().is_empty() {
            writer.write_all(&replies)?;
            replies.clear();
        }
    }
}

fn load_echo(address: &str, load: &Load) -> Result<(), Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let run = Run::new(load)?;
    let mut message = echo_request(load).to_vec();
    message.resize(REQUEST_BYTES + if load.is_write { load.bytes } else { 0 }, 0);
    let mut reply = vec![0; REPLY_BYTES + if load.is_write { 0 } else { load.bytes }];
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(1 << 20, stream);
    // A separate thread sends: both sides may have more to say than the sockets take.
    let (sender, to_send) = std::sync::mpsc::channel::<()>();
    let (began, sent) = std::sync::mpsc::channel::<Instant>();
    if load.depth == 1 {
        loop {
            let now = Instant::now();
            if now >= run.until {
                break;
            }
            writer.write_all(&message)?;
            reader.read_exact(&mut reply)?;
            run.number.fetch_add(1, Ordering::Relaxed);
            run.record(now, Instant::now());
        }
        return run.tell();
    }
    let sending = std::thread::spawn(move || {
        for () in to_send {
            if began.send(Instant::now()).is_err() || writer.write_all(&message).is_err() {
                return;
            }
        }
    });
    for _ in 0..load.depth {
        sender.send(())?;
    }
    let mut under_way = load.depth;
    while under_way > 0 {
        let began = sent.recv()?;
        reader.read_exact(&mut reply)?;
        let now = Instant::now();
        run.number.fetch_add(1, Ordering::Relaxed);
        run.record(began, now);
        if now < run.until {
            sender.send(())?;
        } else {
            under_way -= 1;
        }
    }
    drop(sender);
    let _ = sending.join();
    run.tell()
}
