//! Plays a script.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::Instant;
use underlay_campaign::ScriptReport;
use underlay_gateway::in_process;

use crate::client::{ClientSession, perform, prepare, verify};
use crate::disk::SimulatedDisks;
use crate::etcd::SimulatedEtcd;
use crate::gateway::{BUCKET, KEY_ID, ProcessEnd, SECRET, SharedWorld, SimulatedGateway};
use crate::log::note_log;
use crate::machine::{self, OnThread};
use crate::model::ObjectModel;
use crate::network::SimulatedNetwork;
use crate::script::{ClientOperation, ScriptStep, SimulationScript, StoreFaults, StoreKind};
use crate::store::SimulatedStores;
use crate::world::SimulatedWorld;

/// A process runs for this long before the next one does.
const TICK: Duration = Duration::from_millis(1);
/// The same, while no process interacts with another.
const IDLE_TICK: Duration = Duration::from_millis(50);
/// This many ticks without interaction come before the longer ones.
const IDLE_BEHIND: u32 = 20;
/// Blocking work begins within this time.
const MAX_BLOCKING: Duration = Duration::from_millis(4);
/// A client that needs longer never ends: some stall for an hour.
const CLIENTS_WITHIN: Duration = Duration::from_secs(2 * 3600);
/// A verification of few names: a gateway may refuse one request for half an hour.
const VERIFIED_WITHIN: Duration = Duration::from_secs(3600);
/// Beyond that, for each name: a GET and a HEAD, both of which may need the store.
const VERIFIED_PER_NAME: Duration = Duration::from_millis(200);
/// And for each page of the store's: all of a verification's listings.
const VERIFIED_PER_PAGE: Duration = Duration::from_secs(2);
/// A doomed process dies within this time, even if it changes nothing on its disk.
const DIES_WITHIN: Duration = Duration::from_millis(300);
const MAX_CHANGES: u64 = 40;
/// A supervisor restarts a process after this pause.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// A healthy gateway serves by then.
const READY_WITHIN: Duration = Duration::from_secs(900);
/// Longer than a store works on abandoned requests: nothing lands afterwards.
const SETTLES_IN: Duration = Duration::from_secs(260);
/// Beyond the configured limit of a drain.
const DRAIN_SLACK: Duration = Duration::from_secs(60);
/// An incomplete drain is repeated this often.
const DRAINS: u32 = 10;
/// A gateway's answer to a configuration under which it could not store its pending changes.
const LOSES_SOMETHING: &str = "is no longer exclusive";
/// The playing thread's stack.
const STACK_BYTES: usize = 64 << 20;

thread_local! {
    /// The first panic on a playing thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_PLAYING: Cell<bool> = const { Cell::new(false) };
}

/// Notes panics on a playing thread; others are printed.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_PLAYING.try_with(Cell::get).unwrap_or(false) {
                return former(panic);
            }
            let text = panic.to_string();
            let _ = PANIC.try_with(|first| {
                first.borrow_mut().get_or_insert(text);
            });
        }));
    });
}

/// Plays a script on its own thread: thread-local random numbers then follow the seed.
pub fn play(script: &SimulationScript, keeps_notes: bool) -> ScriptReport {
    note_panics();
    let unfit = |reason: String| ScriptReport { unfit: Some(reason), ..ScriptReport::default() };
    // Before random numbers follow the seed: the name has to be unique.
    let scratch = match tempfile::Builder::new().prefix("underlay-gateway-simulate-").tempdir() {
        Ok(scratch) => scratch,
        Err(error) => return unfit(format!("no directory for the simulated disks: {error}")),
    };
    let (script, path) = (script.clone(), scratch.path().to_owned());
    let playing = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        IS_PLAYING.set(true);
        let run = || play_here(&script, path, keeps_notes);
        let report = std::panic::catch_unwind(AssertUnwindSafe(run));
        IS_PLAYING.set(false);
        report.unwrap_or_else(|_| {
            let reason = PANIC.take().unwrap_or_default();
            ScriptReport { failure: Some(format!("a panic: {reason}")), ..ScriptReport::default() }
        })
    });
    match playing.map(std::thread::JoinHandle::join) {
        Ok(Ok(report)) => report,
        Ok(Err(_)) => unfit("the thread that plays has ended".to_owned()),
        Err(error) => unfit(format!("no thread: {error}")),
    }
}

fn play_here(script: &SimulationScript, scratch: std::path::PathBuf, keeps_notes: bool) -> ScriptReport {
    let world = SimulatedWorld::new(script.seed, keeps_notes);
    let disks = Rc::new(SimulatedDisks::new(world.clone()));
    let on_thread = OnThread::begin(script.seed, Rc::clone(&disks));
    let _log = keeps_notes.then(|| note_log(&world));
    let of_delays = world.clone();
    in_process::simulate(move || of_delays.with_random(|random| random.delay(Duration::ZERO, MAX_BLOCKING)));
    let (stores, network) =
        (SimulatedStores::new(world.clone(), &script.setup.store), SimulatedNetwork::new(world.clone()));
    let model = ObjectModel::new(world.clone(), &script.setup);
    let surroundings = SharedWorld {
        world: world.clone(),
        disks,
        network,
        stores,
        gateways: script.setup.gateways,
        kind: script.setup.store.kind,
        etcd: SimulatedEtcd::new(world.clone()),
        scratch,
    };
    let mut report = ScriptReport {
        crashes: script.crashes(),
        steps: script.steps.len() as u64,
        ..ScriptReport::default()
    };
    match ScriptRun::new(script, &surroundings, model.clone()) {
        Err(reason) => report.unfit = Some(reason),
        Ok(mut run) => {
            let outcome = run.play(script);
            run.end();
            report.failure = outcome.err();
        }
    }
    // A task's panic ends the task alone, and the script may have gone on without it.
    if let Some(panic) = PANIC.take() {
        report.failure = Some(format!("a panic: {panic}"));
    }
    drop(on_thread);
    (report.trace, report.virtual_s) = (world.trace(), world.now().as_secs_f64());
    (report.acknowledged, report.refused) = (model.acknowledged(), model.refused());
    report.notes = world
        .notes()
        .into_iter()
        .map(|(time, event)| format!("{:10.3} {event}", time.as_secs_f64()))
        .collect();
    report
}

/// A client's queue of operations, and how many are left.
struct Client {
    operations: UnboundedSender<ClientOperation>,
    left: Rc<Cell<u64>>,
}

struct ScriptRun {
    world: SimulatedWorld,
    surroundings: SharedWorld,
    model: ObjectModel,
    gateways: Vec<SimulatedGateway>,
    /// Each gateway's last end.
    ends: Vec<Option<ProcessEnd>>,
    /// Each gateway's next start.
    restarts: Vec<Option<Duration>>,
    clients: Vec<Client>,
    /// A client that has to be served is waiting.
    has_probe: bool,
    session: ClientSession,
    /// On a page of the store's listings.
    names_per_page: usize,
    /// The world's count at the last tick, and the number of ticks since it changed.
    moved: u64,
    idle_ticks: u32,
    local: LocalSet,
    outside: Runtime,
    began: Instant,
}

impl ScriptRun {
    fn new(
        script: &SimulationScript,
        surroundings: &SharedWorld,
        model: ObjectModel,
    ) -> Result<ScriptRun, String> {
        if script.setup.store.kind != StoreKind::S3 {
            let directory = surroundings.make_store_directory().map_err(|error| error.to_string())?;
            surroundings.stores.use_directory(&directory).map_err(|error| error.to_string())?;
        }
        let outside = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        let setup = &script.setup;
        let gateways: std::io::Result<Vec<SimulatedGateway>> = (0..setup.gateways)
            .map(|number| SimulatedGateway::new(number, surroundings, &setup.settings))
            .collect();
        let session = ClientSession {
            world: surroundings.world.clone(),
            network: surroundings.network.clone(),
            model: model.clone(),
            stores: surroundings.stores.clone(),
            gateways: setup.gateways,
            client: 0,
            id: KEY_ID.to_owned(),
            secret: SECRET.to_owned(),
            bucket: BUCKET.to_owned(),
        };
        let began = outside.block_on(async { Instant::now() });
        let mut run = ScriptRun {
            world: surroundings.world.clone(),
            surroundings: surroundings.clone(),
            model,
            gateways: gateways.map_err(|error| error.to_string())?,
            ends: vec![None; setup.gateways],
            restarts: vec![None; setup.gateways],
            clients: Vec::new(),
            has_probe: false,
            session,
            names_per_page: setup.store.page,
            moved: 0,
            idle_ticks: 0,
            local: LocalSet::new(),
            outside,
            began,
        };
        for client in 0..setup.clients.max(1) {
            let (operations, mut waiting) = unbounded_channel::<ClientOperation>();
            let left = Rc::new(Cell::new(0));
            let (of_client, session) = (Rc::clone(&left), ClientSession { client, ..run.session.clone() });
            run.local.spawn_local(async move {
                // One after the other: operations of one client never overlap.
                while let Some(operation) = waiting.recv().await {
                    perform(&operation, &session).await;
                    of_client.set(of_client.get() - 1);
                }
            });
            run.clients.push(Client { operations, left });
        }
        Ok(run)
    }

    /// Advances everything by one tick.
    fn tick(&mut self) -> Result<(), String> {
        let moved = self.world.moves();
        self.idle_ticks = if moved == self.moved { self.idle_ticks + 1 } else { 0 };
        self.moved = moved;
        let is_idle = self.idle_ticks > IDLE_BEHIND;
        self.world.advance(if is_idle { IDLE_TICK } else { TICK });
        let deadline = self.began + self.world.now();
        self.local.block_on(&self.outside, async move { tokio::time::sleep_until(deadline).await });
        for number in 0..self.gateways.len() {
            if let Some(end) = self.gateways[number].step() {
                self.ended(number, end)?;
            }
            if self.restarts[number].is_some_and(|due| due <= self.world.now()) {
                self.start(number)?;
            }
        }
        match self.model.failure().or_else(|| self.surroundings.stores.failure()) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn ended(&mut self, number: usize, end: ProcessEnd) -> Result<(), String> {
        self.world
            .note(format_args!("gateway {number} has ended: {}", said(&end, &self.surroundings.scratch)));
        self.model.gateway_died(number);
        self.ends[number] = Some(end.clone());
        match end {
            ProcessEnd::Failed { why: reason, is_bug: true } => {
                Err(format!("gateway {number} ended by a bug: {reason}"))
            }
            ProcessEnd::Failed { why: reason, .. } => {
                // An operator restores the former configuration, and drains first.
                if reason.contains(LOSES_SOMETHING) {
                    self.gateways[number].take_back_settings();
                }
                self.restarts[number] = Some(self.world.now() + RESTART_PAUSE);
                Ok(())
            }
            ProcessEnd::Killed | ProcessEnd::Stopped { .. } => Ok(()),
        }
    }

    fn start(&mut self, number: usize) -> Result<(), String> {
        self.restarts[number] = None;
        if self.gateways[number].is_doomed() {
            // It may die between two changes on its disk.
            self.wait_until(DIES_WITHIN * 2, "a dying gateway has gone on", |run| {
                !run.gateways[number].is_doomed()
            })?;
            self.restarts[number] = None;
        }
        let settings = self.gateways[number].settings.clone();
        self.model.configure(&settings);
        self.gateways[number].start()
    }

    fn wait(&mut self, time: Duration) -> Result<(), String> {
        let deadline = self.world.now() + time;
        while self.world.now() < deadline {
            self.tick()?;
        }
        Ok(())
    }

    fn wait_until(
        &mut self,
        limit: Duration,
        condition: &str,
        is_so: impl Fn(&ScriptRun) -> bool,
    ) -> Result<(), String> {
        let deadline = self.world.now() + limit;
        while !is_so(self) {
            if self.world.now() >= deadline {
                return Err(format!("{condition} for {} s", limit.as_secs()));
            }
            self.tick()?;
        }
        Ok(())
    }

    fn play(&mut self, script: &SimulationScript) -> Result<(), String> {
        prepare(&self.session, &script.setup);
        for number in 0..self.gateways.len() {
            self.start(number)?;
        }
        if script.setup.store.kind == StoreKind::Folding {
            // It refuses the store, or serves.
            let has_begun =
                |run: &ScriptRun| run.gateways.iter().all(|gateway| gateway.is_ready() || !gateway.is_up());
            self.wait_until(READY_WITHIN, "a gateway has been starting", has_begun)?;
            if self.has_refused_store() {
                return Ok(());
            }
        }
        for step in &script.steps {
            self.take(step)?;
        }
        self.heal();
        self.wait_for_clients()?;
        self.come_up()?;
        self.verify("behind all faults")?;
        self.drain()?;
        self.model.check_stores(&self.surroundings.stores, BUCKET);
        self.come_up()?;
        self.verify("behind a drain and a start")?;
        self.tick()
    }

    fn take(&mut self, step: &ScriptStep) -> Result<(), String> {
        let count = self.gateways.len();
        let wrapped = |gateway: &usize| gateway % count;
        if step.is_fault() {
            self.world.note_fault();
        }
        match step {
            ScriptStep::Do { client, operation } => {
                let client = &self.clients[client % self.clients.len()];
                client.left.set(client.left.get() + 1);
                self.has_probe |= matches!(operation, ClientOperation::Probe { .. });
                let _ = client.operations.send(operation.clone());
            }
            ScriptStep::Wait { ms } => self.wait(Duration::from_millis(*ms))?,
            ScriptStep::Barrier => self.wait_for_clients()?,
            ScriptStep::Kill { gateway } => self.doom(wrapped(gateway), false),
            ScriptStep::CutPower { gateway } => self.doom(wrapped(gateway), true),
            ScriptStep::Start { gateway } => self.start(wrapped(gateway))?,
            ScriptStep::Stop { gateway } => self.gateways[wrapped(gateway)].stop(),
            ScriptStep::Continue { gateway } => self.gateways[wrapped(gateway)].go_on(),
            ScriptStep::Terminate { gateway } => self.gateways[wrapped(gateway)].terminate(),
            ScriptStep::FailSyncs { gateway, count } => {
                self.gateways[wrapped(gateway)].fail_syncs(u64::from(*count));
            }
            ScriptStep::FillDisk { gateway, left_bytes } => {
                let disk = self.gateways[wrapped(gateway)].disk();
                self.surroundings.disks.fill(disk, *left_bytes);
            }
            ScriptStep::FreeDisk { gateway } => {
                let disk = self.gateways[wrapped(gateway)].disk();
                self.surroundings.disks.make_room(disk);
            }
            ScriptStep::DropPages { gateway } => {
                let disk = self.gateways[wrapped(gateway)].disk();
                self.surroundings.disks.forget_all(disk);
            }
            ScriptStep::JumpClock { gateway, ms } => {
                self.model.note_clock_jump();
                self.gateways[wrapped(gateway)].jump_clock(*ms);
            }
            ScriptStep::Store(faults) => self.surroundings.stores.set_faults(faults.clone()),
            ScriptStep::Heal => self.heal(),
            // All gateways of a cluster need the same one, and would have to stop at once.
            ScriptStep::Configure(_) if count > 1 => {}
            ScriptStep::Configure(settings) => {
                self.gateways.iter_mut().for_each(|gateway| gateway.settings = settings.clone());
            }
            ScriptStep::StopEtcd => self.surroundings.etcd.set_stopped(true),
            ScriptStep::StartEtcd => self.surroundings.etcd.set_stopped(false),
        }
        Ok(())
    }

    fn doom(&mut self, number: usize, cuts_power: bool) {
        let changes = self.world.with_random(|random| random.below(MAX_CHANGES));
        self.gateways[number].doom(changes, self.world.now() + DIES_WITHIN, cuts_power);
        self.world.note(format_args!("gateway {number} is to die, power cut: {cuts_power}"));
    }

    fn heal(&mut self) {
        self.surroundings.stores.set_faults(StoreFaults::default());
        self.surroundings.etcd.set_stopped(false);
        for gateway in &mut self.gateways {
            self.surroundings.disks.fail_syncs(gateway.disk(), 0, 0);
            self.surroundings.disks.make_room(gateway.disk());
            gateway.set_clock_right();
            gateway.go_on();
        }
        self.world.note_sound();
    }

    fn wait_for_clients(&mut self) -> Result<(), String> {
        // Nothing else mends a fault or starts a gateway while clients wait for it.
        if self.has_probe && self.world.sound_since().is_none() {
            self.heal();
        }
        for gateway in self.gateways.iter_mut().filter(|gateway| gateway.is_terminating()) {
            gateway.go_on();
        }
        self.restart_stopped()?;
        let are_done = |run: &ScriptRun| run.clients.iter().all(|client| client.left.get() == 0);
        self.wait_until(CLIENTS_WITHIN, "clients have been waiting for an answer", are_done)?;
        self.has_probe = false;
        Ok(())
    }

    fn start_what_is_down(&mut self) -> Result<(), String> {
        for number in 0..self.gateways.len() {
            if (!self.gateways[number].is_up() || self.gateways[number].is_doomed())
                && self.restarts[number].is_none()
            {
                self.start(number)?;
            }
        }
        Ok(())
    }

    /// Starts what is down, and what is stopping as soon as it has stopped.
    fn restart_stopped(&mut self) -> Result<(), String> {
        self.start_what_is_down()?;
        let is_over = |run: &ScriptRun| !run.gateways.iter().any(SimulatedGateway::is_terminating);
        self.wait_until(READY_WITHIN, "a gateway has been stopping", is_over)?;
        self.start_what_is_down()
    }

    /// Waits until all gateways serve.
    fn come_up(&mut self) -> Result<(), String> {
        self.restart_stopped()?;
        let are_ready = |run: &ScriptRun| run.gateways.iter().all(SimulatedGateway::is_ready);
        self.wait_until(
            READY_WITHIN,
            "a gateway does not serve, though nothing is wrong any more,",
            are_ready,
        )
    }

    /// Reads everything that clients have written.
    fn verify(&mut self, stage: &str) -> Result<(), String> {
        self.world.note(format_args!("verification {stage}"));
        let (session, is_done) = (self.session.clone(), Rc::new(Cell::new(false)));
        let of_task = Rc::clone(&is_done);
        self.local.spawn_local(async move {
            verify(&session).await;
            of_task.set(true);
        });
        let limit = verification_limit(self.model.keys().len(), self.names_per_page);
        self.wait_until(limit, "the verification has been waiting for an answer", |_| is_done.get())
            .map_err(|failure| format!("{stage}: {failure}"))
    }

    /// Stops each gateway, until it reports that the store has everything.
    fn drain(&mut self) -> Result<(), String> {
        // Abandoned requests may still land, and delay later ones.
        self.wait(SETTLES_IN)?;
        for number in 0..self.gateways.len() {
            self.drain_one(number)?;
        }
        self.wait(SETTLES_IN)
    }

    fn drain_one(&mut self, number: usize) -> Result<(), String> {
        for _ in 0..DRAINS {
            self.gateways[number].terminate();
            let limit = Duration::from_millis(self.gateways[number].settings.drain_ms) + DRAIN_SLACK;
            self.wait_until(limit, "a gateway has been draining", |run| !run.gateways[number].is_up())?;
            if self.ends[number] == Some(ProcessEnd::Stopped { is_stored: true }) {
                return Ok(());
            }
            self.restarts[number] = None;
            self.start(number)?;
            self.wait_until(READY_WITHIN, "a gateway does not serve behind a drain", |run| {
                run.gateways[number].is_ready()
            })?;
            self.wait(SETTLES_IN)?;
        }
        Err(format!("gateway {number} can't store everything: {DRAINS} drains in a row left something"))
    }

    /// Whether a gateway has refused the store, as it should refuse a directory that folds case.
    fn has_refused_store(&self) -> bool {
        let says_so = |end: &Option<ProcessEnd>| matches!(end, Some(ProcessEnd::Failed { why, is_bug: false }) if why.contains("can't be a store"));
        self.ends.iter().any(says_so)
    }

    /// Ends the gateways, and then drops the clients.
    fn end(&mut self) {
        for gateway in &mut self.gateways {
            gateway.die(false);
        }
        self.clients.clear();
    }
}

/// How long a verification may take. Most of it is the simulator's own requests, one after another.
fn verification_limit(names: usize, names_per_page: usize) -> Duration {
    let pages = names.div_ceil(names_per_page.max(1));
    let times = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    VERIFIED_WITHIN
        .saturating_add(VERIFIED_PER_NAME.saturating_mul(times(names)))
        .saturating_add(VERIFIED_PER_PAGE.saturating_mul(times(pages)))
}

/// Without the scratch directory's name, which differs from run to run.
fn said(end: &ProcessEnd, scratch: &std::path::Path) -> String {
    match end {
        ProcessEnd::Stopped { is_stored } => format!("stopped, everything stored: {is_stored}"),
        ProcessEnd::Failed { why: reason, is_bug } => {
            let kind = if *is_bug { "a bug" } else { "a failure" };
            format!("{kind}: {}", reason.replace(&*scratch.to_string_lossy(), "..."))
        }
        ProcessEnd::Killed => "killed".to_owned(),
    }
}

impl Drop for ScriptRun {
    fn drop(&mut self) {
        machine::set_wall_offset(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As seed 96 needs it, estimated: 22 ms for each of a page's 18 requests, and 80 ms for each name.
    #[test]
    fn verification_limit_many_names_grows_with_names_and_pages() {
        assert_eq!(verification_limit(0, 0), VERIFIED_WITHIN);
        let short_pages = verification_limit(17_000, 3);
        assert!(short_pages > Duration::from_millis(17_000 * 80 + 5667 * 18 * 22) + VERIFIED_WITHIN);
        assert!(verification_limit(17_000, 1000) < short_pages);
        assert!(verification_limit(usize::MAX, 1) > short_pages);
    }
}
