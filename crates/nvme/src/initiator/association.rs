//! The association of a host and a controller while they are connected: the admin queue and the I/O queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use underlay_sync::Instant;

use super::error::InitiatorError;
use super::exchange::{CommandAnswer, CommandExchange, CommandPayload, SharedBuffer};
use super::options::ControllerOptions;
use super::queue::{HostQueue, QueueMembership, QueueOwner};
use super::stats::InitiatorStats;
use crate::auth::{HostSession, HostStep, MAX_MESSAGE_BYTES, SessionEntropy};
use crate::command::{self, CompletionEntry, NvmeCommand, SglDescriptor};
use crate::fabrics::{
    ANY_CONTROLLER, AuthCommand, CATTR_NO_FLOW_CONTROL, CC_ENABLE, CC_ENTRY_SIZES, CC_SHUTDOWN_NORMAL,
    CSTS_FATAL, CSTS_READY, ConnectCommand, ConnectData, DISCOVERY_NQN, PropertyGet, PropertySet, property,
};
use crate::features::{
    ASYNC_EVENT_CONFIGURATION, EVENT_NAMESPACE_CHANGED, NUMBER_OF_QUEUES, QueueCount, SetFeatures,
};
use crate::identify::{
    ControllerData, IDENTIFY_BYTES, IdentifyCommand, MODEL_NUMBER, NvmControllerData, cns,
};
use crate::status::NvmeStatus;

/// The smallest admin queue that fabrics allow; the kernel's initiator takes the same.
const ADMIN_DEPTH: u16 = 32;
/// Bits 18:17 of a Connect's answer ask for authentication, with or without a secure channel upon it (base 6.3).
const AUTHENTICATION_BITS: u64 = 3 << 17;
/// CAP.TO is in units of this (base 3.1.3.1).
const READY_UNIT: Duration = Duration::from_millis(500);
const READY_POLL: Duration = Duration::from_millis(5);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Its own limit, for controllers without one: longer transfers would only hold up what is behind them.
const MAX_TRANSFER_BYTES: u64 = 1 << 20;

/// The facts about a controller that matter to its use.
#[derive(Clone, Debug)]
pub(super) struct ControllerLimits {
    pub identify: ControllerData,
    pub transfer_bytes: u64,
    /// Of a Write Zeroes, in bytes.
    pub zeroes_bytes: u64,
    /// Of a range to deallocate, in blocks.
    pub deallocate_blocks: u64,
}

pub(super) struct HostAssociation {
    /// Tells it from the ones before and after.
    pub number: u64,
    admin: Arc<HostQueue>,
    io: Vec<Arc<HostQueue>>,
    pub limits: ControllerLimits,
    /// A number for the other host that wrote to the subsystem last; 0 if none did, or the target can't tell.
    pub last_writer: u64,
    next: AtomicUsize,
}

/// Closes the queues of an association that did not come about.
struct AssociationGuard(Vec<Arc<HostQueue>>);

impl Drop for AssociationGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(|queue| queue.close());
        self.0.iter().for_each(|queue| queue.join());
    }
}

impl HostAssociation {
    /// Connects the admin queue, enables the controller and connects its I/O queues; none to a discovery controller.
    pub(super) fn establish(
        options: &ControllerOptions,
        (instance, number): (u64, u64),
        stats: &Arc<InitiatorStats>,
        io_queues: bool,
        owner: Arc<dyn QueueOwner>,
    ) -> Result<HostAssociation, InitiatorError> {
        let member = QueueMembership { association: number, owner };
        let mut begun = AssociationGuard(Vec::new());
        let admin = HostQueue::open(options, 0, ADMIN_DEPTH - 1, stats, member.clone())?;
        begun.0.push(Arc::clone(&admin));
        let controller_id = connect_queue(options, &admin, ADMIN_DEPTH, ANY_CONTROLLER)?;
        enable(options, &admin)?;
        let limits = identify(options, &admin)?;
        let mut last_writer = 0;
        if io_queues && limits.identify.model_number.trim() == MODEL_NUMBER {
            // Before any I/O queue exists: what we send must not be overtaken by commands of the former
            // association. A vendor command, so only to our own target: with another maker its opcode could
            // mean anything.
            last_writer = replace_former(options, &admin, instance, number)?;
        }
        let mut io = Vec::new();
        if io_queues {
            let count = ask_for_queues(options, &admin)?;
            let depth = match limits.identify.max_commands {
                0 => options.queue_depth,
                most => options.queue_depth.min(most),
            };
            // A queue of one more entry, since a full one looks like an empty one; and no smaller than two.
            let entries = depth + 1;
            let entries = entries.min(queue_entries(options, &admin)?).max(2);
            for id in 1..=count {
                let queue = HostQueue::open(options, id, entries - 1, stats, member.clone())?;
                begun.0.push(Arc::clone(&queue));
                connect_queue(options, &queue, entries, controller_id)?;
                queue.set_capsule_data_bytes(
                    usize::try_from(limits.identify.capsule_data_bytes()).unwrap_or(usize::MAX),
                );
                io.push(queue);
            }
        }
        begun.0.clear();
        Ok(HostAssociation { number, admin, io, limits, last_writer, next: AtomicUsize::new(0) })
    }

    pub(super) fn admin(&self) -> &HostQueue {
        &self.admin
    }

    pub(super) fn io_queues(&self) -> usize {
        self.io.len()
    }

    /// The I/O queue with the least to do; of those that have as much, each in turn.
    pub(super) fn pick(&self) -> &HostQueue {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..self.io.len()).map(|step| &self.io[(first + step) % self.io.len()]);
        in_turn.min_by_key(|queue| queue.under_way()).unwrap_or(&self.admin)
    }

    /// Ends all connections, without a word to the controller.
    pub(super) fn close(&self) {
        self.io.iter().chain([&self.admin]).for_each(|queue| queue.close());
    }

    pub(super) fn join(&self) {
        self.io.iter().chain([&self.admin]).for_each(|queue| queue.join());
    }

    /// Takes leave of the controller.
    pub(super) fn shut_down(&self) {
        let value = u64::from(CC_ENABLE | CC_ENTRY_SIZES | CC_SHUTDOWN_NORMAL);
        let set = PropertySet { offset: property::CC, is_wide: false, value };
        let _ = call(&self.admin, set.to_command(0), CommandPayload::None, SHUTDOWN_LIMIT, "the shutdown");
    }
}

/// Sends a command and waits for its answer, regardless of its status.
pub(super) fn call(
    queue: &HostQueue,
    command: NvmeCommand,
    payload: CommandPayload,
    limit: Duration,
    operation: &'static str,
) -> Result<CommandAnswer, InitiatorError> {
    let (exchange, waiting) = CommandExchange::awaited(command, payload);
    if let Err(exchange) = queue.submit(exchange) {
        drop(exchange);
        return Err(InitiatorError::Lost { what: operation, reason: "it had already ended".into() });
    }
    match waiting.wait(limit) {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(lost)) => Err(InitiatorError::lost(operation, lost)),
        None => {
            // Its place and its buffer are still taken: a connection like that is of no use.
            queue.close();
            Err(InitiatorError::TimedOut { what: operation })
        }
    }
}

/// As [`call`], for those that have to succeed.
pub(super) fn succeed(
    queue: &HostQueue,
    command: NvmeCommand,
    payload: CommandPayload,
    limit: Duration,
    operation: &'static str,
) -> Result<CommandAnswer, InitiatorError> {
    let answer = call(queue, command, payload, limit, operation)?;
    match answer.completion.status {
        status if status.is_success() => Ok(answer),
        status => Err(InitiatorError::Command { what: operation, status }),
    }
}

fn connect_queue(
    options: &ControllerOptions,
    queue: &HostQueue,
    entries: u16,
    controller_id: u16,
) -> Result<u16, InitiatorError> {
    let is_admin = queue.id() == 0;
    let kato_ms = u32::try_from(options.keep_alive_timeout.as_millis()).unwrap_or(u32::MAX);
    let connect = ConnectCommand {
        record_format: 0,
        queue_id: queue.id(),
        sq_size: entries - 1,
        attributes: CATTR_NO_FLOW_CONTROL,
        // One timer for the whole controller: the admin queue sets it.
        kato_ms: if is_admin { kato_ms } else { 0 },
    };
    let data = ConnectData {
        host_id: options.host_id,
        controller_id,
        subsystem_nqn: options.subsystem_nqn.clone(),
        host_nqn: options.host_nqn.clone(),
    };
    let payload = CommandPayload::Send(SharedBuffer::new(data.encode()));
    let answer = call(queue, connect.to_command(0), payload, options.connect_timeout, "Connect")?;
    let CompletionEntry { result, status, .. } = answer.completion;
    if !status.is_success() {
        let subsystem = options.subsystem_nqn.clone();
        let advice = match status.plain() {
            NvmeStatus::CONNECT_INVALID_HOST => "This host's NQN is not on its list: add it there",
            NvmeStatus::CONNECT_INVALID_PARAMETERS => {
                "It may have no subsystem with this NQN: `nvme discover` and the target's own list show which it has"
            }
            NvmeStatus::CONNECT_CONTROLLER_BUSY => {
                "It has no controller left: connect fewer hosts, or try again later"
            }
            _ => "The target's log may say more",
        };
        return Err(InitiatorError::Refused { subsystem, status, advice });
    }
    if result & AUTHENTICATION_BITS != 0 {
        authenticate(options, queue)?;
    } else if options.secrets.as_ref().is_some_and(|secrets| secrets.controller.is_some()) {
        // An impostor in the controller's place would ask for no authentication.
        return Err(InitiatorError::NoAuthentication(options.subsystem_nqn.clone()));
    }
    Ok(result as u16)
}

fn authenticate(options: &ControllerOptions, queue: &HostQueue) -> Result<(), InitiatorError> {
    let limit = options.connect_timeout;
    let secrets = options.secrets.clone();
    let secrets =
        secrets.ok_or_else(|| InitiatorError::AuthenticationRequired(options.subsystem_nqn.clone()))?;
    let entropy = SessionEntropy::draw().map_err(InitiatorError::Entropy)?;
    let mut session = HostSession::new(secrets, &options.host_nqn, &options.subsystem_nqn, entropy);
    let send = |message: Vec<u8>| {
        let command = AuthCommand::new(message.len() as u32).to_send_command(0);
        succeed(
            queue,
            command,
            CommandPayload::Send(SharedBuffer::new(message)),
            limit,
            "Authentication Send",
        )
    };
    let mut message = session.start();
    loop {
        send(message)?;
        let command = AuthCommand::new(MAX_MESSAGE_BYTES as u32).to_receive_command(0);
        let place = CommandPayload::Receive(vec![0; MAX_MESSAGE_BYTES]);
        let answer = succeed(queue, command, place, limit, "Authentication Receive")?;
        match session.receive(&answer.received[..answer.received_bytes]) {
            HostStep::Exchange(next) => message = next,
            HostStep::SendAndFinish(last) => return send(last).map(|_| ()),
            HostStep::Finished => return Ok(()),
            HostStep::Failed { send: farewell, error } => {
                if let Some(farewell) = farewell {
                    let _ = send(farewell);
                }
                return Err(error.into());
            }
        }
    }
}

fn get(
    queue: &HostQueue,
    options: &ControllerOptions,
    offset: u32,
    is_wide: bool,
) -> Result<u64, InitiatorError> {
    let command = PropertyGet { offset, is_wide }.to_command(0);
    let answer = succeed(queue, command, CommandPayload::None, options.connect_timeout, "Property Get")?;
    Ok(answer.completion.result)
}

/// The most entries of an I/O queue (CAP.MQES, one less).
fn queue_entries(options: &ControllerOptions, admin: &HostQueue) -> Result<u16, InitiatorError> {
    let capabilities = get(admin, options, property::CAP, true)?;
    Ok((capabilities as u16).saturating_add(1))
}

fn enable(options: &ControllerOptions, admin: &HostQueue) -> Result<(), InitiatorError> {
    let capabilities = get(admin, options, property::CAP, true)?;
    let value = u64::from(CC_ENABLE | CC_ENTRY_SIZES);
    let set = PropertySet { offset: property::CC, is_wide: false, value };
    succeed(
        admin,
        set.to_command(0),
        CommandPayload::None,
        options.connect_timeout,
        "enabling the controller",
    )?;
    let units = (capabilities >> 24) as u8;
    let deadline = Instant::now() + READY_UNIT * u32::from(units.max(1));
    loop {
        let status = get(admin, options, property::CSTS, false)? as u32;
        if status & CSTS_FATAL != 0 {
            let problem = "its controller reports a fatal failure (CSTS.CFS)".into();
            return Err(InitiatorError::Protocol { address: options.address.clone(), problem });
        }
        if status & CSTS_READY != 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(InitiatorError::TimedOut { what: "enabling the controller" });
        }
        underlay_sync::thread::sleep(READY_POLL);
    }
}

pub(super) fn identify_page(
    admin: &HostQueue,
    limit: Duration,
    command: IdentifyCommand,
    operation: &'static str,
) -> Result<Box<[u8; IDENTIFY_BYTES]>, InitiatorError> {
    let place = CommandPayload::Receive(vec![0; IDENTIFY_BYTES]);
    let answer = succeed(admin, command.to_command(0), place, limit, operation)?;
    let page = answer.received.into_boxed_slice().try_into();
    page.map_err(|_| InitiatorError::Lost { what: operation, reason: "its data is too short".into() })
}

fn identify(options: &ControllerOptions, admin: &HostQueue) -> Result<ControllerLimits, InitiatorError> {
    let limit = options.connect_timeout;
    let page =
        identify_page(admin, limit, IdentifyCommand::new(cns::CONTROLLER, 0), "identifying the controller")?;
    let identify = ControllerData::decode(&page);
    // A discovery controller may give the name of its own subsystem (base 4.5), and one of an old version none.
    let is_other = !identify.subsystem_nqn.is_empty() && identify.subsystem_nqn != options.subsystem_nqn;
    if is_other && options.subsystem_nqn != DISCOVERY_NQN {
        let problem = format!(
            "the controller of {} says that it is one of '{}'",
            options.subsystem_nqn,
            identify.subsystem_nqn.escape_debug()
        );
        return Err(InitiatorError::Protocol { address: options.address.clone(), problem });
    }
    let transfer_bytes = identify.max_transfer_bytes().unwrap_or(u64::MAX).min(MAX_TRANSFER_BYTES);
    let command = IdentifyCommand::new(cns::COMMAND_SET_CONTROLLER, 0);
    let nvm = match identify_page(admin, limit, command, "identifying the command set") {
        Ok(page) => Some(NvmControllerData::decode(&page)),
        // Controllers of older versions don't know the page.
        Err(InitiatorError::Command { .. }) => None,
        Err(error) => return Err(error),
    };
    let zeroes_bytes = match nvm.map(|nvm| nvm.write_zeroes_limit) {
        None => transfer_bytes,
        Some(0) => u64::MAX,
        Some(power) => 4096_u64.checked_shl(u32::from(power)).unwrap_or(u64::MAX),
    };
    let nvm = nvm.unwrap_or_default();
    let limits = [u64::from(nvm.dataset_range_blocks), nvm.dataset_blocks];
    let deallocate_blocks = limits.into_iter().filter(|blocks| *blocks > 0).min().unwrap_or(u64::MAX);
    Ok(ControllerLimits { identify, transfer_bytes, zeroes_bytes, deallocate_blocks })
}

/// Has the target end what is left of the associations before this one. Their connections may be open on its side
/// still, with commands on their way that must not happen after what is sent now. Says whether another host wrote last.
fn replace_former(
    options: &ControllerOptions,
    admin: &HostQueue,
    instance: u64,
    number: u64,
) -> Result<u64, InitiatorError> {
    let mut command = NvmeCommand::new(command::admin::REPLACE_FORMER, 0, 0, SglDescriptor::empty());
    let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
    command.dwords[..2].copy_from_slice(&halves(instance));
    command.dwords[2..4].copy_from_slice(&halves(number));
    let operation = "replacing a lost connection";
    let answer = succeed(admin, command, CommandPayload::None, options.connect_timeout, operation)?;
    Ok(answer.completion.result)
}

/// How many I/O queues there may be.
fn ask_for_queues(options: &ControllerOptions, admin: &HostQueue) -> Result<u16, InitiatorError> {
    let limit = options.connect_timeout;
    let dword11 = QueueCount::pairs(u32::from(options.queues)).to_value();
    let set = SetFeatures { feature: NUMBER_OF_QUEUES, save: false, dword11 };
    let answer = succeed(admin, set.to_command(0), CommandPayload::None, limit, "requesting I/O queues")?;
    let granted = QueueCount::from_value(answer.completion.result as u32);
    // Not every controller tells of changes.
    let set =
        SetFeatures { feature: ASYNC_EVENT_CONFIGURATION, save: false, dword11: EVENT_NAMESPACE_CHANGED };
    call(admin, set.to_command(0), CommandPayload::None, limit, "requesting events")?;
    let granted = granted.submission.min(granted.completion).min(u32::from(options.queues));
    Ok(granted.max(1) as u16)
}
