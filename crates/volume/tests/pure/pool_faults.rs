//! Mirrored volumes whose members fail in any order, also two at a time, go, come back, and lose their power: flushed
//! data is never read as it was before; other requests may get errors.

use std::sync::Arc;

use crate::pool_model::{VolumeModel, content_of, read_all};
use crate::power_device::{PowerDevice, Supply};
use proptest::prelude::*;
use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_volume::VolumePool;
use underlay_volume::pool::{MemberState, PoolError, PoolSettings, VolumeSpec};

const MEMBERS: usize = 3;
const BLOCKS: usize = 200;
const NAMES: [&str; 2] = ["plain", "packed"];

#[derive(Clone, Copy, Debug)]
enum Fault {
    Gone,
    Reads,
    Writes,
    Flushes,
    Nothing,
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        volume: usize,
        block: usize,
        blocks: usize,
        random: bool,
        fua: bool,
    },
    Flush(usize),
    Verify(usize),
    /// Of a member, from now on.
    Fault(usize, Fault),
    /// A member loses what it had not made durable, and is left out for it.
    Forget(usize),
    Resync(usize),
    /// All lose their power; if the last member fails, it goes on failing while the pool is opened. The other two have
    /// the journal: one of them alone may not know what it has missed.
    PowerCut,
}

fn step() -> impl Strategy<Value = Step> {
    let member = || 0..MEMBERS;
    let fault = prop_oneof![
        2 => Just(Fault::Gone),
        2 => Just(Fault::Reads),
        2 => Just(Fault::Writes),
        2 => Just(Fault::Flushes),
        6 => Just(Fault::Nothing),
    ];
    prop_oneof![
        8 => (0..2usize, 0..BLOCKS, 1..70usize, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(volume, block, blocks, random, fua)| Step::Write { volume, block, blocks, random, fua }),
        4 => (0..2usize).prop_map(Step::Flush),
        2 => (0..2usize).prop_map(Step::Verify),
        6 => (member(), fault).prop_map(|(member, fault)| Step::Fault(member, fault)),
        1 => member().prop_map(Step::Forget),
        3 => member().prop_map(Step::Resync),
        2 => Just(Step::PowerCut),
    ]
}

fn try_open(devices: &[PowerDevice]) -> Result<VolumePool, PoolError> {
    let members: Vec<Arc<dyn BlockDevice>> = devices.iter().map(PowerDevice::as_device).collect();
    VolumePool::open(members, PoolSettings::default())
}

fn set(device: &PowerDevice, fault: Fault) {
    device.fail_when(move |request| match fault {
        Fault::Gone => true,
        Fault::Reads => matches!(request, DeviceRequest::Read { .. }),
        Fault::Writes => matches!(request, DeviceRequest::Write { .. } | DeviceRequest::Discard { .. }),
        Fault::Flushes => matches!(request, DeviceRequest::Flush),
        Fault::Nothing => false,
    });
}

struct Bench {
    supply: Arc<Supply>,
    devices: Vec<PowerDevice>,
    faults: Vec<Fault>,
    pool: VolumePool,
    models: Vec<VolumeModel>,
    content: u64,
    seed: u64,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let supply = Supply::new(seed);
        let devices: Vec<PowerDevice> =
            (0..MEMBERS).map(|_| supply.device(vec![0; 20 * (256 << 10)])).collect();
        let pool = try_open(&devices).expect("the pool is made");
        let make = |name: &str| {
            let compress = (name == "packed").then_some(CompressionCodec::Lz4);
            let spec = VolumeSpec { mirror: true, compress, ..VolumeSpec::new((BLOCKS * 4096) as u64) };
            let handle = Some(pool.create(name, &spec).expect("a volume is made"));
            VolumeModel { handle, ..VolumeModel::new(vec![0; BLOCKS], true) }
        };
        let models = NAMES.map(make).into();
        Bench { supply, devices, faults: vec![Fault::Nothing; MEMBERS], pool, models, content: 1, seed }
    }

    fn clear_faults(&mut self) {
        self.faults = vec![Fault::Nothing; MEMBERS];
        self.devices.iter().for_each(|device| set(device, Fault::Nothing));
    }

    /// What can be read is what was written.
    fn verify(&self, volume: usize) {
        let model = &self.models[volume];
        let handle = model.handle.as_ref().expect("a handle");
        let expected = model.known.lock().unwrap();
        for (block, history) in expected.blocks.iter().enumerate() {
            let read = DeviceRequest::Read { offset_bytes: block as u64 * 4096, buffer: vec![1; 4096] };
            let Ok(read) = handle.execute(read) else { continue };
            let found = content_of(&read);
            let last = history.iter().rposition(|(_, completed)| completed.is_some()).unwrap_or(0);
            let allowed = &history[last..];
            assert!(
                allowed.iter().any(|(allowed, _)| *allowed == found),
                "block {block} of {} holds {found}, allowed are {allowed:?}",
                NAMES[volume]
            );
        }
    }

    fn power_cut(&mut self) {
        self.supply.cut();
        let images: Vec<Vec<u8>> = self.devices.iter().map(PowerDevice::image_after_cut).collect();
        self.seed += 1;
        self.supply = Supply::new(self.seed);
        self.devices = images.into_iter().map(|image| self.supply.device(image)).collect();
        set(&self.devices[MEMBERS - 1], self.faults[MEMBERS - 1]);
        let opened = try_open(&self.devices);
        self.clear_faults();
        self.pool = match opened {
            Ok(pool) => pool,
            Err(_) => try_open(&self.devices).expect("it opens when all members answer"),
        };
        for (name, model) in NAMES.iter().zip(&mut self.models) {
            let volume = self.pool.volume(name).expect("it is there");
            model.settle(name, read_all(&volume));
            model.handle = Some(volume);
        }
        assert_eq!(self.pool.check().expect("it can be checked").problems, Vec::<String>::new());
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write { volume, block, blocks, random, fua } => {
                self.content += 2;
                self.models[volume].change(block, blocks, self.content + u64::from(random), fua);
            }
            Step::Flush(volume) => self.models[volume].flush(|_| {}),
            Step::Verify(volume) => self.verify(volume),
            Step::Fault(member, fault) => {
                self.faults[member] = fault;
                set(&self.devices[member], fault);
            }
            Step::Forget(member) => {
                let members = self.pool.info().members;
                if members.iter().any(|member| member.state != MemberState::InUse) {
                    return;
                }
                self.clear_faults();
                // The half of the journal on another one may still be out.
                (0..MEMBERS).for_each(|member| self.pool.resync(member).expect("all are well"));
                set(&self.devices[member], Fault::Gone);
                self.pool.flush().expect("one member may fail");
                self.devices[member].forget();
                set(&self.devices[member], Fault::Nothing);
            }
            Step::Resync(member) => drop(self.pool.resync(member)),
            Step::PowerCut => self.power_cut(),
        }
    }

    /// With all members well again nothing is lost, and any one of them may be.
    fn end(&mut self) {
        self.clear_faults();
        self.power_cut();
        (0..MEMBERS).for_each(|member| self.pool.resync(member).expect("it is well"));
        assert!(self.pool.list().iter().all(|volume| !volume.degraded));
        let contents: Vec<Vec<u64>> =
            NAMES.iter().map(|name| read_all(&self.pool.volume(name).unwrap())).collect();
        (0..self.models.len()).for_each(|volume| self.verify(volume));
        self.pool.close().expect("it ends");
        for lost in 0..MEMBERS {
            let supply = Supply::new(1);
            let devices: Vec<PowerDevice> =
                self.devices.iter().map(|device| supply.device(device.image())).collect();
            devices[lost].set_gone(true);
            let pool = try_open(&devices).expect("one member may be lost");
            for (name, contents) in NAMES.iter().zip(&contents) {
                assert_eq!(&read_all(&pool.volume(name).unwrap()), contents, "{name} without member {lost}");
            }
        }
    }
}

/// How many sequences are tried; more by `UNDERLAY_POOL_CASES`.
fn cases() -> u32 {
    std::env::var("UNDERLAY_POOL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn double_member_failures_lose_nothing_flushed(
        steps in prop::collection::vec(step(), 1..60),
        seed in any::<u32>(),
    ) {
        let mut bench = Bench::new(u64::from(seed));
        steps.iter().for_each(|step| bench.take(step));
        bench.end();
    }
}

/// Two members fail a write, and are well again before anything else is written: an entry that the journal still lacks
/// is no failure of a resync.
#[test]
fn members_that_failed_one_write_together_can_be_resynced() {
    let write = |volume, block| Step::Write { volume, block, blocks: 1, random: false, fua: false };
    let mut bench = Bench::new(0);
    for step in [
        write(0, 128),
        write(0, 0),
        write(1, 0),
        Step::Fault(0, Fault::Writes),
        Step::Fault(1, Fault::Writes),
        write(0, 0),
        Step::Forget(0),
    ] {
        bench.take(&step);
    }
    bench.end();
}
