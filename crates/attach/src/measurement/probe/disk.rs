//! A real device or file as a target of probes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_storage::fit::{LoadSample, ProbeLoad, ProbeTarget, SLICES, TargetError};
use underlay_storage::medium::ModelOperation;

use super::native_aio::{AioCompletion, AioRing};

/// A disk that is probed with direct I/O, in wall time.
pub struct ProbedDisk {
    file: File,
    name: String,
    span_bytes: u64,
    may_write: bool,
    /// The slow-motion factor of a modelled device: all times are divided by it.
    dilation: f64,
    stop: Arc<AtomicBool>,
}

/// If the prober spends this share of its time on the CPU, the device may be waiting for it.
const SATURATED_SHARE: f64 = 0.9;
const REST_STEP: Duration = Duration::from_millis(20);

impl ProbedDisk {
    /// `file` was opened for direct I/O; `name` is for messages. Raising `stop` ends a load early.
    pub fn new(
        file: File,
        name: impl Into<String>,
        span_bytes: u64,
        may_write: bool,
        stop: Arc<AtomicBool>,
    ) -> ProbedDisk {
        ProbedDisk { file, name: name.into(), span_bytes, may_write, dilation: 1.0, stop }
    }

    /// How many times slower the device runs than the one it stands for.
    pub fn slow_down(&mut self, dilation: f64) {
        self.dilation = dilation;
    }

    fn failed(&self, doing: &str, error: io::Error) -> TargetError {
        let hint = match error.raw_os_error() {
            Some(libc::EINVAL) => {
                ": it takes no direct I/O of this size; name a file or directory on a disk's own file system"
            }
            Some(libc::ENOSPC) => ": give a smaller --size",
            _ => "",
        };
        TargetError::Failed(format!("could not {doing} {}: {error}{hint}", self.name))
    }

    fn flush(&self) -> Result<Duration, TargetError> {
        let began = Instant::now();
        rustix::fs::fdatasync(&self.file).map_err(|errno| self.failed("flush", errno.into()))?;
        Ok(began.elapsed())
    }

    /// Converts wall time to the device's nanoseconds.
    fn ns(&self, span: Duration) -> u64 {
        (span.as_nanos() as f64 / self.dilation) as u64
    }

    /// Writes the span once from its start to its end, and stops early after `longest`. Returns the number of bytes
    /// written.
    ///
    /// # Errors
    /// As `run`.
    pub fn lay_out(&mut self, longest: Duration) -> Result<u64, TargetError> {
        const BLOCK_BYTES: usize = 1 << 20;
        const DEPTH: usize = 4;
        let began = Instant::now();
        let mut ring = self.ring(DEPTH, BLOCK_BYTES)?;
        let (mut next, mut ended) = (0, Vec::new());
        let mut free: Vec<usize> = (0..DEPTH).collect();
        loop {
            while began.elapsed() < longest
                && !self.stop.load(Ordering::Relaxed)
                && next + BLOCK_BYTES as u64 <= self.span_bytes
                && let Some(slot) = free.pop()
            {
                ring.submit(slot, true, next).map_err(|error| self.failed("write to", error))?;
                next += BLOCK_BYTES as u64;
            }
            if ring.under_way() == 0 {
                break;
            }
            ring.wait(&mut ended).map_err(|error| self.failed("write to", error))?;
            for AioCompletion { slot, result } in ended.drain(..) {
                self.whole(result, BLOCK_BYTES, true)?;
                free.push(slot);
            }
        }
        drop(ring);
        self.flush()?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(TargetError::Stopped);
        }
        self.span_bytes = next;
        Ok(next)
    }

    fn ring(&self, slots: usize, slot_bytes: usize) -> Result<AioRing<'_>, TargetError> {
        AioRing::new(self.file.as_fd(), slots, slot_bytes)
            .map_err(|error| self.failed("prepare asynchronous requests to", error))
    }

    fn whole(&self, result: io::Result<usize>, bytes: usize, is_write: bool) -> Result<(), TargetError> {
        let doing = if is_write { "write to" } else { "read" };
        match result {
            Ok(moved) if moved == bytes => Ok(()),
            Ok(moved) => {
                let short = format!("{moved} of {bytes} bytes only: does something else change its size?");
                Err(self.failed(doing, io::Error::other(short)))
            }
            Err(error) => Err(self.failed(doing, error)),
        }
    }
}

impl ProbeTarget for ProbedDisk {
    fn span_bytes(&self) -> u64 {
        self.span_bytes
    }

    fn may_write(&self) -> bool {
        self.may_write
    }

    fn run(&mut self, load: &ProbeLoad) -> Result<LoadSample, TargetError> {
        let is_write = load.pattern.operation() == ModelOperation::Write;
        if is_write && !self.may_write {
            return Err(TargetError::Failed(format!("{} may not be written to", self.name)));
        }
        let block_bytes = load.block_bytes as usize;
        let blocks = load.span_bytes / load.block_bytes;
        if blocks == 0 {
            return Err(TargetError::Failed(format!("{} is smaller than {block_bytes} bytes", self.name)));
        }
        let mut ring = self.ring(load.queue_depth, block_bytes)?;
        let (warmup, duration) = (load.warmup.mul_f64(self.dilation), load.duration.mul_f64(self.dilation));
        let slice = (duration / SLICES as u32).max(Duration::from_nanos(1));
        let slice_s = load.duration.as_secs_f64() / SLICES as f64;
        let mut sample = LoadSample { slices: vec![0; SLICES], slice_s, ..LoadSample::default() };
        let mut order = BlockOrder::new(load.seed, blocks);
        let mut submitted = vec![Instant::now(); load.queue_depth];
        let mut free: Vec<usize> = (0..load.queue_depth).collect();
        let mut ended = Vec::new();
        let mut answered = 0;
        let cpu_before = thread_cpu();
        let began = Instant::now();
        let (measure_from, deadline) = (began + warmup, began + warmup + duration);
        let mut last = measure_from;
        loop {
            let stopped = self.stop.load(Ordering::Relaxed);
            while !stopped
                && sample.requests < load.most_requests
                && Instant::now() < deadline
                && let Some(slot) = free.pop()
            {
                let block = if load.pattern.is_random() { order.random() } else { order.next() };
                // Before the call, which may itself wait for room in the device's queue.
                submitted[slot] = Instant::now();
                ring.submit(slot, is_write, load.first_byte + block * load.block_bytes)
                    .map_err(|error| self.failed(if is_write { "write to" } else { "read" }, error))?;
            }
            if ring.under_way() == 0 {
                break;
            }
            ring.wait(&mut ended).map_err(|error| self.failed("wait for", error))?;
            let now = Instant::now();
            for AioCompletion { slot, result } in ended.drain(..) {
                self.whole(result, block_bytes, is_write)?;
                free.push(slot);
                answered += 1;
                if now < measure_from || now >= deadline || sample.requests >= load.most_requests {
                    continue;
                }
                sample.latency.record_ns(self.ns(now - submitted[slot]));
                sample.requests += 1;
                last = now;
                let index = ((now - measure_from).as_nanos() / slice.as_nanos()) as usize;
                if let Some(bytes) = sample.slices.get_mut(index) {
                    *bytes += load.block_bytes;
                }
            }
            if load.flush_every > 0 && answered >= load.flush_every && ring.under_way() == 0 {
                answered = 0;
                let flush_time = self.flush()?;
                let now = Instant::now();
                if now >= measure_from && now < deadline {
                    sample.flush.record_ns(self.ns(flush_time));
                }
            }
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(TargetError::Stopped);
        }
        let elapsed = began.elapsed().as_secs_f64().max(1e-9);
        sample.saturated = (thread_cpu() - cpu_before).as_secs_f64() / elapsed > SATURATED_SHARE;
        // A load that is limited by its number of requests ends with its last answer.
        let ended_at = if sample.requests >= load.most_requests { last } else { deadline };
        sample.duration_s = ended_at.saturating_duration_since(measure_from).as_secs_f64() / self.dilation;
        Ok(sample)
    }

    fn settle(&mut self, pause: Duration) -> Result<(), TargetError> {
        if self.may_write {
            self.flush()?;
        }
        let deadline = Instant::now() + pause.mul_f64(self.dilation);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(TargetError::Stopped);
            }
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(REST_STEP)),
                _ => return Ok(()),
            }
        }
    }
}

/// Chooses the next block.
struct BlockOrder {
    state: u64,
    blocks: u64,
    next: u64,
}

impl BlockOrder {
    fn new(seed: u64, blocks: u64) -> BlockOrder {
        BlockOrder { state: seed, blocks, next: 0 }
    }

    /// SplitMix64 (Steele, Lea and Flood 2014), and Lemire's reduction to a range.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * u128::from(self.blocks)) >> 64) as u64
    }

    fn next(&mut self) -> u64 {
        let block = self.next % self.blocks;
        self.next += 1;
        block
    }
}

/// This thread's CPU time.
fn thread_cpu() -> Duration {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
    Duration::new(spent.tv_sec.max(0) as u64, spent.tv_nsec.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use underlay_storage::predict::AccessPattern;

    use super::*;

    fn load(pattern: AccessPattern) -> ProbeLoad {
        ProbeLoad {
            pattern,
            block_bytes: 4096,
            queue_depth: 4,
            first_byte: 0,
            span_bytes: 1 << 20,
            flush_every: 0,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(20),
            most_requests: 100,
            seed: 1,
        }
    }

    fn disk(stop: &Arc<AtomicBool>) -> ProbedDisk {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        ProbedDisk::new(file, "a file", 1 << 20, true, Arc::clone(stop))
    }

    #[test]
    fn load_stops_at_request_count_and_counts_each() {
        let mut disk = disk(&Arc::default());
        for pattern in [
            AccessPattern::RandomRead,
            AccessPattern::SequentialRead,
            AccessPattern::RandomWrite,
            AccessPattern::SequentialWrite,
        ] {
            let sample = disk.run(&load(pattern)).unwrap();
            assert_eq!((sample.requests, sample.latency.count()), (100, 100));
            assert!(sample.duration_s > 0.0 && sample.duration_s < 20.0);
            assert!(sample.slices.iter().sum::<u64>() <= 100 * 4096);
        }
        let flushed = ProbeLoad { queue_depth: 1, flush_every: 10, ..load(AccessPattern::RandomWrite) };
        let sample = disk.run(&flushed).unwrap();
        assert_eq!((sample.requests, sample.flush.count()), (100, 10));
    }

    #[test]
    fn stop_ends_load_and_pause() {
        let stop = Arc::new(AtomicBool::new(true));
        let mut disk = disk(&stop);
        assert!(matches!(disk.run(&load(AccessPattern::RandomRead)), Err(TargetError::Stopped)));
        assert!(matches!(disk.settle(Duration::from_secs(60)), Err(TargetError::Stopped)));
        assert!(matches!(disk.lay_out(Duration::from_secs(60)), Err(TargetError::Stopped)));
    }

    #[test]
    fn laying_out_writes_the_whole_span() {
        let mut disk = disk(&Arc::default());
        assert_eq!(disk.lay_out(Duration::from_secs(60)).unwrap(), 1 << 20);
    }

    #[test]
    fn random_blocks_cover_the_span_and_stay_inside() {
        let mut order = BlockOrder::new(7, 10);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[order.random() as usize] += 1);
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }
}
