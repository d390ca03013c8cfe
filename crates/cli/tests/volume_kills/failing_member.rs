//! A member of the pool fails while its server is killed: before the kill, at it, while the pool is opened again, or
//! while initiators write again what they kept. While the fault lasts reads and writes may fail, of volumes that are
//! not mirrored; nothing is ever read that is not what was answered last. Once it is over everything is there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use underlay_nvme::initiator::{ControllerOptions, NvmeController, RemoteDevice};
use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_storage::faults::DeviceFault;
use underlay_volume::pool::MemberState;
use underlay_volume::server::PoolConnection;
use underlay_volume::server::protocol::{PoolCommand, PoolReply, PoolState};

use crate::parts::{Part, Random};
use crate::support::{Playground, stderr, stdout};
use crate::volumes::VolumeServer;
use crate::{POOL, VOLUMES, all_parts, forget_unflushed, kills, playground};

/// Of the kills that are asked for, one in this many meets a failing member.
const SHARE: u64 = 3;
const MEMBERS: u64 = 3;
/// Of `VOLUMES`.
const MIRRORED: usize = 2;
const CONTROL: &str = "kills.pool/control";
const FAULTS: &str = "kills.pool/faults.json";
const MAX_RUN_US: u64 = 60_000;

/// When the member fails, seen from the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    /// It is sent, and nobody waits for the answer.
    At,
    /// From the first request of the next server on.
    Opening,
    /// As soon as the next server listens: initiators are on their way back.
    Replay,
}

const MOMENTS: [Moment; 4] = [Moment::Before, Moment::At, Moment::Opening, Moment::Replay];

#[derive(Debug)]
struct Strike {
    moment: Moment,
    member: String,
    fault: DeviceFault,
    /// Initiators come back to the next server and know what they kept; otherwise they are gone with the first one.
    come_back: bool,
    /// So long the fault lasts while writers go on.
    lasting: Duration,
    /// The server is killed once more before the member returns.
    twice: bool,
}

impl Strike {
    fn draw(number: u64, random: &mut Random) -> Strike {
        let fault = match random.below(3) {
            0 => DeviceFault::Errors {
                operations: Vec::new(),
                rate: [1.0, 0.3][random.below(2) as usize],
                extent: None,
                seed: random.below(u64::MAX),
            },
            _ => DeviceFault::Vanish,
        };
        Strike {
            moment: MOMENTS[(number % 4) as usize],
            member: format!("nvme-9300-max.{}", random.below(MEMBERS)),
            fault,
            come_back: (number / 4).is_multiple_of(2),
            lasting: Duration::from_micros(10_000 + random.below(MAX_RUN_US)),
            twice: random.below(3) == 0,
        }
    }

    fn command(&self) -> PoolCommand {
        PoolCommand::Fault { device: self.member.clone(), fault: self.fault.clone() }
    }

    /// As the server notes it: a device does not return because its server does.
    fn note(&self, playground: &Playground) {
        let noted = serde_json::json!([{ "device": self.member, "fault": self.fault }]);
        playground.write(FAULTS, &noted.to_string());
    }
}

fn ask(playground: &Playground, command: &PoolCommand) -> PoolReply {
    PoolConnection::open(&playground.path(CONTROL)).unwrap().ask(command).unwrap()
}

fn state_of(playground: &Playground, member: &str) -> MemberState {
    let PoolReply::State(PoolState { members, .. }) = ask(playground, &PoolCommand::List) else {
        panic!("that is no state")
    };
    members.iter().find(|one| one.name == member).unwrap().state
}

fn connect(server: &VolumeServer, come_back: bool) -> Vec<(NvmeController, RemoteDevice)> {
    let one = |volume: &&str| match come_back {
        true => {
            let controller =
                NvmeController::connect(ControllerOptions::new(&server.address, server.nqn(volume))).unwrap();
            let device = controller.namespace(1).unwrap();
            (controller, device)
        }
        false => server.connect(&server.nqn(volume)),
    };
    VOLUMES.iter().map(one).collect()
}

/// What happened to the writers.
#[derive(Default)]
struct Seen {
    refused: AtomicU64,
    /// Requests to mirrored volumes that failed while their server lived.
    mirrored: AtomicU64,
}

/// Writers go on over errors until it is over; what they do until `during` returns.
fn under_load<T>(
    parts: &mut [Part],
    devices: &[(NvmeController, RemoteDevice)],
    random: &mut Random,
    seen: &Seen,
    is_dying: &AtomicBool,
    during: impl FnOnce() -> T,
) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in parts.iter_mut() {
            let (device, is_over, seed) = (devices[part.volume].1.clone(), &is_over, random.below(u64::MAX));
            scope.spawn(move || {
                let mut random = Random(seed);
                while !is_over.load(Ordering::SeqCst) {
                    let flushes = part.flushes;
                    let changes = part.changes;
                    if let Err(error) = part.step(&device, &mut random) {
                        // The server may have died first.
                        if is_dying.load(Ordering::SeqCst) {
                            return;
                        }
                        assert_eq!((part.flushes, part.changes), (flushes, changes));
                        seen.refused.fetch_add(1, Ordering::SeqCst);
                        if part.volume == MIRRORED && seen.mirrored.fetch_add(1, Ordering::SeqCst) == 0 {
                            println!("a mirrored volume answered: {error}");
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        let result = during();
        is_over.store(true, Ordering::SeqCst);
        result
    })
}

/// What can be read is right, and of mirrored volumes everything can; by part, what could not be read.
fn look(
    parts: &mut [Part],
    devices: &[(NvmeController, RemoteDevice)],
    takes_over: bool,
) -> Result<Vec<Vec<u64>>, String> {
    let mut unread = Vec::new();
    for part in parts.iter_mut() {
        let blocks = part.verify_what_is_read(&devices[part.volume].1, takes_over)?;
        if part.volume == MIRRORED && !blocks.is_empty() {
            return Err(format!("a mirrored volume can't be read at {blocks:?}"));
        }
        unread.push(blocks);
    }
    Ok(unread)
}

struct Outcome {
    /// The pool left the member out.
    left_out: bool,
    refused: u64,
    unread: usize,
    /// Flushes that failed since something answered was lost, after the fault was over.
    failed_flushes: u64,
}

fn strike(
    playground: &Playground,
    parts: &mut [Part],
    strike: &Strike,
    random: &mut Random,
) -> Result<Outcome, String> {
    let first = VolumeServer::start(playground, &["--immediate"]);
    let address = first.address.clone();
    let again = || VolumeServer::start(playground, &["--immediate", "--listen", &address]);
    let mut devices = connect(&first, strike.come_back);
    for part in parts.iter_mut() {
        part.verify(&devices[part.volume].1).map_err(|problem| format!("before it: {problem}"))?;
    }
    let seen = Seen::default();
    let is_dying = AtomicBool::new(false);
    let (delay, gap) =
        (Duration::from_micros(random.below(MAX_RUN_US)), Duration::from_micros(random.below(10_000)));
    let strike_and_kill = |first: VolumeServer| {
        std::thread::sleep(delay);
        // Only initiators that come back are above what the kill does to a connection.
        let dying = || is_dying.store(!strike.come_back, Ordering::SeqCst);
        match strike.moment {
            Moment::Before => {
                assert_eq!(ask(playground, &strike.command()), PoolReply::Done);
                std::thread::sleep(gap);
                dying();
                first.kill();
            }
            Moment::At => std::thread::scope(|scope| {
                let mut control = PoolConnection::open(&playground.path(CONTROL)).unwrap();
                // Whether it is answered, or heard at all, is up to the kill.
                scope.spawn(move || drop(control.ask(&strike.command())));
                std::thread::sleep(gap / 10);
                dying();
                first.kill();
            }),
            Moment::Opening | Moment::Replay => {
                dying();
                first.kill();
            }
        }
        if matches!(strike.moment, Moment::At | Moment::Opening) {
            strike.note(playground);
        }
    };
    let serve_again = || {
        let server = again();
        if strike.moment == Moment::Replay {
            assert_eq!(ask(playground, &strike.command()), PoolReply::Done);
        }
        server
    };
    let mut server = if strike.come_back {
        under_load(parts, &devices, random, &seen, &is_dying, || {
            strike_and_kill(first);
            let server = serve_again();
            std::thread::sleep(strike.lasting);
            server
        })
    } else {
        under_load(parts, &devices, random, &seen, &is_dying, || strike_and_kill(first));
        is_dying.store(false, Ordering::SeqCst);
        // Before another server is there: an initiator that hears of the kill late would find that one and write again
        // what it kept, older writes before newer ones, while others read.
        drop(devices);
        let server = serve_again();
        devices = connect(&server, false);
        look(parts, &devices, !strike.come_back).map_err(|problem| format!("after the kill: {problem}"))?;
        under_load(parts, &devices, random, &seen, &is_dying, || std::thread::sleep(strike.lasting));
        server
    };
    let unread =
        look(parts, &devices, !strike.come_back).map_err(|problem| format!("under the fault: {problem}"))?;
    let left_out = state_of(playground, &strike.member) != MemberState::InUse;
    if strike.twice {
        server.kill();
        if !strike.come_back {
            devices.clear();
        }
        server = again();
        if !strike.come_back {
            devices = connect(&server, false);
        }
        look(parts, &devices, !strike.come_back)
            .map_err(|problem| format!("after the second kill: {problem}"))?;
    }
    assert_eq!(seen.mirrored.load(Ordering::SeqCst), 0, "a mirrored volume answered with errors: {strike:?}");

    assert_eq!(ask(playground, &PoolCommand::ClearFaults { device: None }), PoolReply::Done);
    look(parts, &devices, !strike.come_back)
        .map_err(|problem| format!("when the member is back: {problem}"))?;
    let resync = || {
        let output = playground.output(&["volume", "resync", "pool.toml", &strike.member]);
        if output.status.success() { Ok(()) } else { Err(format!("resync: {}", stderr(&output))) }
    };
    match resync() {
        // It could not be read when the pool was opened, and has a part of the journal.
        Err(problem) if problem.contains("opening the pool tries again") => {
            server.kill();
            if !strike.come_back {
                devices.clear();
            }
            server = again();
            if !strike.come_back {
                devices = connect(&server, false);
            }
            look(parts, &devices, !strike.come_back).map_err(|problem| format!("opened again: {problem}"))?;
            resync()?;
        }
        result => result?,
    }
    let mut failed_flushes = 0;
    for part in parts.iter_mut() {
        let device = &devices[part.volume].1;
        let flushed = device.execute(DeviceRequest::Flush);
        let blocks = part.verify_what_is_read(device, flushed.is_ok())?;
        match flushed {
            // Nothing that was answered is gone, then.
            Ok(_) if !blocks.is_empty() => {
                return Err(format!("a flush succeeded, and blocks {blocks:?} can't be read"));
            }
            Ok(_) => {}
            Err(error) if strike.come_back => {
                failed_flushes += 1;
                if part.volume == MIRRORED {
                    return Err(format!("a mirrored volume has lost blocks {blocks:?}: {error}"));
                }
            }
            Err(error) => return Err(format!("flushing {}: {error}", VOLUMES[part.volume])),
        }
    }
    // Flushes of a volume fail as long as any of its lost blocks was not written again.
    for round in 0..2 {
        for part in parts.iter_mut() {
            let device = &devices[part.volume].1;
            let lost = part.verify_what_is_read(device, false)?;
            if round == 0 {
                part.rewrite(device, &lost).map_err(|error| format!("writing again: {error}"))?;
            } else {
                device.execute(DeviceRequest::Flush).map_err(|error| format!("at the end: {error}"))?;
                part.verify(device)?;
            }
        }
    }
    let state = state_of(playground, &strike.member);
    if state != MemberState::InUse {
        return Err(format!("{} is {state:?} after its resync", strike.member));
    }
    drop(devices);
    server.kill();
    // All is flushed: also without what the server had noted.
    forget_unflushed(playground);
    let checked = playground.output(&["volume", "check", "pool.toml"]);
    if !checked.status.success() {
        return Err(format!("check: {}{}", stdout(&checked), stderr(&checked)));
    }
    let (refused, unread) = (seen.refused.into_inner(), unread.iter().map(Vec::len).sum());
    Ok(Outcome { left_out, refused, unread, failed_flushes })
}

#[test]
fn failing_member_survives_server_kills() {
    let (strikes, seed) = ((kills() / SHARE).max(8), u64::from(std::process::id()));
    let mut random = Random(seed);
    let playground = playground(POOL);
    let mut parts = all_parts();
    let (mut struck, mut left_out, mut refused, mut unread, mut failed_flushes) = ([0; 4], 0, 0, 0, 0);
    for number in 0..strikes {
        let one = Strike::draw(number, &mut random);
        let outcome = strike(&playground, &mut parts, &one, &mut random).unwrap_or_else(|problem| {
            let log = std::fs::read_to_string(playground.path("server.log")).unwrap_or_default();
            panic!("seed {seed}, strike {number}, {one:?}: {problem}\n{log}")
        });
        struck[(number % 4) as usize] += 1;
        left_out += u64::from(outcome.left_out);
        refused += outcome.refused;
        unread += outcome.unread;
        failed_flushes += outcome.failed_flushes;
    }
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let devices = connect(&server, false);
    for part in &mut parts {
        part.verify(&devices[part.volume].1)
            .unwrap_or_else(|problem| panic!("seed {seed}, at the end: {problem}"));
    }
    drop(devices);
    assert_eq!(server.stop(), Some(130));
    let changes: u64 = parts.iter().map(|part| part.changes).sum();
    let [before, during, opening, replay] = struck;
    println!(
        "volumes with a member that fails: {strikes} kills ({before} after it failed, {during} in that moment, {opening} before it failed at \
         the opening, {replay} before it failed at the replay), {changes} answered changes; {left_out} times it was left out, \
         {refused} requests were refused, {unread} blocks could not be read meanwhile, {failed_flushes} flushes told of a loss; \
         nothing wrong was read, and nothing is lost"
    );
    assert!(struck.iter().all(|&count| count > 0), "{struck:?}");
    assert!(left_out > strikes / 4 && refused > 0 && unread > 0, "the faults struck nothing");
    assert_eq!(playground.left_behind(), [""; 0]);
}
