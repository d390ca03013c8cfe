//! Commands of the admin queue (base 5).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::command::{ALL_NAMESPACES, DatasetRange, NvmeCommand, admin, nvm};
use crate::features::{self, FeatureSelect, GetFeatures, QueueCount, SetFeatures};
use crate::identify::{
    self, ControllerData, ControllerKind, IDENTIFY_BYTES, IdentifyCommand, NAMESPACE_THIN, NVM_COMMAND_SET,
    NamespaceData, NamespaceDescriptors, NvmControllerData, SGLS_OFFSET, SGLS_SUPPORTED, SGLS_TRANSPORT, cns,
    oncs,
};
use crate::log_page::{
    self, AsyncEvent, CommandEffect, DiscoveredKind, DiscoveryEntry, DiscoveryHead, ErrorEntry, GetLogPage,
    SmartLog,
};
use crate::status::NvmeStatus;
use crate::target::TargetShared;
use crate::target::connection::{CAPSULE_DATA_BYTES, MDTS};
use crate::target::subsystems::controller::queue::CommandReply;
use crate::target::subsystems::controller::{
    ERROR_ENTRIES, EVENT_REQUESTS, KEEP_ALIVE_GRANULARITY, MAX_QUEUE, TargetController, VERSION,
};
use crate::target::subsystems::{MAX_NSID, NvmSubsystem, ReplaceRefusal, TargetNamespace};

const FIRMWARE_REVISION: &str = env!("CARGO_PKG_VERSION");
const ABORTS: u8 = 3;
/// How long a host waits for a shutdown: flushing may take long.
const SHUTDOWN_LATENCY_US: u32 = 30_000_000;
/// 38 degrees: nothing here is warm, and no reading at all would look like a failing sensor.
const TEMPERATURE_KELVIN: u16 = 311;

const ADMIN_COMMANDS: [u8; 8] = [
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    admin::REPLACE_FORMER,
];

const IO_COMMANDS: [CommandEffect; 6] = [
    CommandEffect { opcode: nvm::FLUSH, changes_blocks: false },
    CommandEffect { opcode: nvm::WRITE, changes_blocks: true },
    CommandEffect { opcode: nvm::READ, changes_blocks: false },
    CommandEffect { opcode: nvm::COMPARE, changes_blocks: false },
    CommandEffect { opcode: nvm::WRITE_ZEROES, changes_blocks: true },
    CommandEffect { opcode: nvm::DATASET_MANAGEMENT, changes_blocks: true },
];

const INVALID_FIELD: NvmeStatus = NvmeStatus::INVALID_FIELD.do_not_retry();
const INVALID_NAMESPACE: NvmeStatus = NvmeStatus::INVALID_NAMESPACE.do_not_retry();

pub(in crate::target) fn execute(
    shared: &TargetShared,
    controller: &Arc<TargetController>,
    command: &NvmeCommand,
    reply: CommandReply,
) {
    let is_discovery = controller.subsystem().is_none();
    match command.opcode {
        admin::IDENTIFY => answer(controller, command, reply, identify(controller, command)),
        admin::GET_LOG_PAGE => {
            let local = reply.queue().stream.addresses().map(|(local, _)| local);
            answer(controller, command, reply, get_log_page(shared, controller, command, local));
        }
        admin::GET_FEATURES => get_features(controller, command, reply),
        admin::SET_FEATURES => match set_features(controller, command) {
            Ok(result) => reply.result(NvmeStatus::SUCCESS, u64::from(result)),
            Err(status) => refuse(controller, command, reply, status),
        },
        admin::ASYNC_EVENT_REQUEST => controller.request_event(reply),
        admin::KEEP_ALIVE => reply.success(),
        admin::REPLACE_FORMER if !is_discovery => replace_former(controller, command, reply),
        admin::ABORT if !is_discovery => abort(controller, command, reply),
        _ => refuse(controller, command, reply, NvmeStatus::INVALID_OPCODE.do_not_retry()),
    }
}

fn answer(
    controller: &TargetController,
    command: &NvmeCommand,
    reply: CommandReply,
    data: Result<Vec<u8>, NvmeStatus>,
) {
    match data {
        Ok(data) => reply.data(data),
        Err(status) => refuse(controller, command, reply, status),
    }
}

fn refuse(controller: &TargetController, command: &NvmeCommand, reply: CommandReply, status: NvmeStatus) {
    const ADMIN_QUEUE: u16 = 0;
    controller.log_error(ADMIN_QUEUE, command.cid, status, 0, command.nsid);
    reply.status(status.with_more());
}

/// The host has made this controller in the place of others, of whose end the target may not know yet.
fn replace_former(controller: &Arc<TargetController>, command: &NvmeCommand, reply: CommandReply) {
    let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [instance_low, instance_high, number_low, number_high, ..] = command.dwords;
    let (instance, number) = (wide(instance_low, instance_high), wide(number_low, number_high));
    let Some(subsystem) = controller.subsystem() else { return reply.status(INVALID_FIELD) };
    match subsystem.replace_former(controller, instance, number) {
        Ok(()) => {
            reply.result(NvmeStatus::SUCCESS, subsystem.last_writer_but(&controller.host()));
        }
        Err(ReplaceRefusal::ByNewer) => {
            refuse(controller, command, reply, NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry());
        }
        Err(ReplaceRefusal::NotYet) => reply.status(NvmeStatus::NAMESPACE_NOT_READY),
    }
}

/// A command that a device has runs to its end, which the specification allows (base 5.1); only a request for an
/// event can be taken back.
fn abort(controller: &TargetController, command: &NvmeCommand, reply: CommandReply) {
    const NOT_ABORTED: u64 = 1;
    let (sq_id, cid) = (command.dwords[0] as u16, (command.dwords[0] >> 16) as u16);
    let aborted = if sq_id == 0 { controller.abort_event_request(cid) } else { None };
    match aborted {
        Some(request) => {
            request.status(NvmeStatus::ABORT_REQUESTED);
            reply.success();
        }
        None => reply.result(NvmeStatus::SUCCESS, NOT_ABORTED),
    }
}

fn identify(controller: &TargetController, command: &NvmeCommand) -> Result<Vec<u8>, NvmeStatus> {
    let identify = IdentifyCommand::from_command(command);
    if (command.sgl.length_bytes as usize) < IDENTIFY_BYTES {
        return Err(NvmeStatus::DATA_LENGTH_INVALID.do_not_retry());
    }
    if identify.cns == cns::CONTROLLER {
        return Ok(controller_data(controller).encode());
    }
    let subsystem = controller.subsystem().ok_or(INVALID_FIELD)?;
    if identify.command_set != NVM_COMMAND_SET
        && matches!(
            identify.cns,
            cns::COMMAND_SET_NAMESPACE | cns::COMMAND_SET_CONTROLLER | cns::COMMAND_SET_ACTIVE_NAMESPACES
        )
    {
        return Err(INVALID_FIELD);
    }
    match identify.cns {
        cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => {
            let namespace = namespace_or_none(subsystem, identify.nsid)?;
            Ok(namespace.map_or_else(empty, |namespace| namespace_data(&namespace).encode()))
        }
        cns::ACTIVE_NAMESPACES | cns::COMMAND_SET_ACTIVE_NAMESPACES | cns::ALLOCATED_NAMESPACES => {
            // FFFFFFFEh and FFFFFFFFh are no place for a list to begin behind.
            if identify.nsid >= ALL_NAMESPACES - 1 {
                return Err(INVALID_NAMESPACE);
            }
            let namespaces = subsystem.namespaces();
            let following =
                namespaces.iter().map(|namespace| namespace.nsid).filter(|nsid| *nsid > identify.nsid);
            Ok(identify::encode_namespace_list(following))
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let namespace = namespace_or_none(subsystem, identify.nsid)?.ok_or(INVALID_NAMESPACE)?;
            let uuid = namespace.uuid;
            let command_set = Some(NVM_COMMAND_SET);
            Ok(NamespaceDescriptors { nguid: Some(uuid), uuid: Some(uuid), command_set }.encode())
        }
        // The NVM command set's own part of a namespace says nothing that needs saying here: all zeros.
        cns::COMMAND_SET_NAMESPACE => namespace_or_none(subsystem, identify.nsid).map(|_| empty()),
        cns::COMMAND_SET_CONTROLLER => {
            let dataset_ranges = u8::try_from(DatasetRange::MAX_COUNT).unwrap_or(u8::MAX);
            let data = NvmControllerData { write_zeroes_limit: MDTS, dataset_ranges, ..Default::default() };
            Ok(data.encode())
        }
        cns::INDEPENDENT_NAMESPACE => {
            let namespace = namespace_or_none(subsystem, identify.nsid)?;
            Ok(namespace.map_or_else(empty, |_| identify::encode_independent_namespace(true)))
        }
        cns::ATTACHED_CONTROLLERS => {
            namespace_or_none(subsystem, identify.nsid)?.ok_or(INVALID_NAMESPACE)?;
            Ok(controller_list(subsystem, identify.controller_id))
        }
        cns::CONTROLLERS => Ok(controller_list(subsystem, identify.controller_id)),
        _ => Err(INVALID_FIELD),
    }
}

fn empty() -> Vec<u8> {
    vec![0; IDENTIFY_BYTES]
}

fn controller_list(subsystem: &NvmSubsystem, from: u16) -> Vec<u8> {
    identify::encode_controller_list(subsystem.controller_ids().into_iter().filter(|id| *id >= from))
}

/// A namespace, or none for an ID that could be one's.
fn namespace_or_none(
    subsystem: &NvmSubsystem,
    nsid: u32,
) -> Result<Option<Arc<TargetNamespace>>, NvmeStatus> {
    if (1..=MAX_NSID).contains(&nsid) { Ok(subsystem.namespace(nsid)) } else { Err(INVALID_NAMESPACE) }
}

fn controller_data(controller: &TargetController) -> ControllerData {
    const DISCOVERY_SERIAL: &str = "discovery";
    const HOST_ID_128: u32 = 1;
    const TRAFFIC_KEEPS_ALIVE: u32 = 1 << 6;
    const LOG_PAGE_OF_EFFECTS: u8 = 1 << 1;
    const LOG_PAGE_OFFSETS: u8 = 1 << 2;
    /// One slot, which can only be read.
    const FIRMWARE_SLOTS: u8 = 1 | 1 << 1;
    /// There is a cache, and all namespaces may be flushed at once.
    const WRITE_CACHE: u8 = 1 | 3 << 1;
    let mut data = ControllerData {
        serial_number: DISCOVERY_SERIAL.to_owned(),
        model_number: identify::MODEL_NUMBER.to_owned(),
        firmware_revision: FIRMWARE_REVISION.to_owned(),
        may_have_several_controllers: true,
        mdts: MDTS,
        controller_id: controller.id,
        version: VERSION,
        oaes: features::EVENT_DISCOVERY_CHANGED,
        ctratt: HOST_ID_128 | TRAFFIC_KEEPS_ALIVE,
        kind: ControllerKind::Discovery,
        shutdown_latency_us: SHUTDOWN_LATENCY_US,
        abort_limit: ABORTS,
        // 0's based, and so is ELPE below.
        event_request_limit: EVENT_REQUESTS as u8 - 1,
        firmware_updates: FIRMWARE_SLOTS,
        log_page_attributes: LOG_PAGE_OFFSETS,
        error_log_entries: ERROR_ENTRIES as u8 - 1,
        keep_alive_granularity: KEEP_ALIVE_GRANULARITY,
        max_commands: MAX_QUEUE + 1,
        sgls: SGLS_SUPPORTED | SGLS_OFFSET | SGLS_TRANSPORT,
        subsystem_nqn: controller.subsystem_nqn().to_owned(),
        ..ControllerData::default()
    };
    if let Some(subsystem) = controller.subsystem() {
        data.serial_number = subsystem.serial_number().to_owned();
        data.oaes = features::EVENT_NAMESPACE_CHANGED;
        data.kind = ControllerKind::Io;
        data.log_page_attributes |= LOG_PAGE_OF_EFFECTS;
        data.namespaces = MAX_NSID;
        data.oncs = oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES;
        data.volatile_write_cache = WRITE_CACHE;
        // In units of 16 bytes: the 64 of the command itself, and its data.
        data.io_command_capsule_units = (64 + CAPSULE_DATA_BYTES) / 16;
        data.io_response_capsule_units = 1;
        data.max_sgl_descriptors = 1;
    }
    data
}

fn namespace_data(namespace: &TargetNamespace) -> NamespaceData {
    let size_blocks = namespace.blocks();
    let preferred_blocks = namespace.optimal_io_bytes / namespace.block_bytes;
    NamespaceData {
        size_blocks,
        capacity_blocks: size_blocks,
        // A device doesn't tell how much of it is in use.
        used_blocks: size_blocks,
        features: NAMESPACE_THIN,
        is_shared: true,
        reads_zeros_after_deallocation: true,
        write_zeroes_deallocates: true,
        nvm_capacity_bytes: u128::from(namespace.capacity_bytes()),
        preferred_blocks: if preferred_blocks > 1 { preferred_blocks } else { 0 },
        nguid: namespace.uuid,
        eui64: [0; 8],
        block_bytes: namespace.block_bytes,
    }
}

fn get_log_page(
    shared: &TargetShared,
    controller: &TargetController,
    command: &NvmeCommand,
    local: Option<SocketAddr>,
) -> Result<Vec<u8>, NvmeStatus> {
    let wanted = GetLogPage::from_command(command);
    if wanted.offset_is_index {
        return Err(INVALID_FIELD);
    }
    // The SGL bounds what is sent; that it is no larger than a transfer was looked at before.
    if wanted.length_bytes > u64::from(command.sgl.length_bytes) {
        return Err(NvmeStatus::DATA_LENGTH_INVALID.do_not_retry());
    }
    let page = match (wanted.page, controller.subsystem()) {
        (log_page::SUPPORTED_PAGES, subsystem) => log_page::encode_supported_pages(match subsystem {
            None => &[log_page::SUPPORTED_PAGES, log_page::ERRORS, log_page::DISCOVERY],
            Some(_) => &[
                log_page::SUPPORTED_PAGES,
                log_page::ERRORS,
                log_page::SMART,
                log_page::FIRMWARE_SLOTS,
                log_page::CHANGED_NAMESPACES,
                log_page::COMMAND_EFFECTS,
            ],
        }),
        (log_page::ERRORS, _) => {
            let mut page: Vec<u8> = controller.errors().iter().flat_map(ErrorEntry::encode).collect();
            page.resize(ERROR_ENTRIES * ErrorEntry::BYTES, 0);
            page
        }
        (log_page::DISCOVERY, None) => {
            if !wanted.retain_event {
                // Before the page is made: a change meanwhile is then reported as a new event.
                controller.page_was_read(AsyncEvent::DiscoveryChanged);
            }
            discovery_page(shared, controller, local)
        }
        (log_page::SMART, Some(subsystem)) => match wanted.nsid {
            0 | ALL_NAMESPACES => smart(controller, subsystem).encode(),
            _ => return Err(INVALID_FIELD),
        },
        (log_page::FIRMWARE_SLOTS, Some(_)) => log_page::encode_firmware_slots(FIRMWARE_REVISION),
        (log_page::CHANGED_NAMESPACES, Some(_)) => {
            if !wanted.retain_event {
                controller.page_was_read(AsyncEvent::NamespacesChanged);
            }
            log_page::encode_changed_namespaces(&controller.take_changed_namespaces(wanted.retain_event))
        }
        (log_page::COMMAND_EFFECTS, Some(_)) => {
            log_page::encode_command_effects(&ADMIN_COMMANDS, &IO_COMMANDS)
        }
        _ => return Err(NvmeStatus::INVALID_LOG_PAGE.do_not_retry()),
    };
    part(page, wanted.offset_bytes, wanted.length_bytes)
}

/// The requested part of a page, with zeros behind its end.
fn part(mut page: Vec<u8>, offset_bytes: u64, length_bytes: u64) -> Result<Vec<u8>, NvmeStatus> {
    let offset =
        usize::try_from(offset_bytes).ok().filter(|offset| *offset <= page.len()).ok_or(INVALID_FIELD)?;
    let length = usize::try_from(length_bytes).map_err(|_| INVALID_FIELD)?;
    page.drain(..offset);
    page.resize(length, 0);
    Ok(page)
}

fn smart(controller: &TargetController, subsystem: &NvmSubsystem) -> SmartLog {
    const UNIT_BYTES: u128 = 512 * 1000;
    const FULL_PERCENT: u8 = 100;
    const SPARE_THRESHOLD_PERCENT: u8 = 10;
    let mut smart = SmartLog {
        temperature_kelvin: TEMPERATURE_KELVIN,
        available_spare_percent: FULL_PERCENT,
        spare_threshold_percent: SPARE_THRESHOLD_PERCENT,
        power_on_hours: u128::from(controller.age().as_secs() / 3600),
        error_log_entries: u128::from(controller.error_count()),
        ..SmartLog::default()
    };
    let (mut read_bytes, mut written_bytes) = (0_u128, 0_u128);
    for namespace in subsystem.namespaces() {
        let counters = namespace.counters();
        smart.read_commands += u128::from(counters.reads);
        smart.write_commands += u128::from(counters.writes);
        smart.media_errors += u128::from(counters.errors);
        read_bytes += u128::from(counters.read_bytes);
        written_bytes += u128::from(counters.written_bytes);
    }
    // A data unit is a thousand times 512 bytes, rounded up.
    smart.data_units_read = read_bytes.div_ceil(UNIT_BYTES);
    smart.data_units_written = written_bytes.div_ceil(UNIT_BYTES);
    smart
}

/// The subsystems that this host may connect to, at each address of the target (base 5.16.1.23).
fn discovery_page(
    shared: &TargetShared,
    controller: &TargetController,
    local: Option<SocketAddr>,
) -> Vec<u8> {
    // Read first: what changes while the page is made is then seen as newer than the page.
    let generation = shared.subsystems.generation();
    let entries: Vec<DiscoveryEntry> = shared
        .subsystems
        .list()
        .into_iter()
        .filter(|subsystem| subsystem.admit(&controller.host_nqn).is_some())
        .flat_map(|subsystem| {
            let nqn = subsystem.nqn().to_owned();
            let numbered = shared.addresses().into_iter().enumerate();
            numbered.map(move |(port, address)| discovery_entry(port, address, local, nqn.clone()))
        })
        .collect();
    let head = DiscoveryHead { generation, entries: entries.len() as u64 };
    let mut page = head.encode();
    entries.iter().for_each(|entry| page.extend(entry.encode()));
    page
}

fn discovery_entry(
    port: usize,
    address: SocketAddr,
    local: Option<SocketAddr>,
    subsystem_nqn: String,
) -> DiscoveryEntry {
    // A target that listens everywhere is reached where the host has just reached it.
    let ip = match local {
        Some(local) if address.ip().is_unspecified() => local.ip(),
        _ => address.ip(),
    };
    DiscoveryEntry {
        transport: DiscoveryEntry::TCP,
        address_family: if ip.is_ipv4() { DiscoveryEntry::IPV4 } else { DiscoveryEntry::IPV6 },
        kind: DiscoveredKind::Nvm,
        port_id: port as u16,
        subsystem_nqn,
        address: ip.to_string(),
        service: address.port().to_string(),
    }
}

fn get_features(controller: &TargetController, command: &NvmeCommand, reply: CommandReply) {
    const WIDE_HOST_ID: u32 = 1;
    let get = GetFeatures::from_command(command);
    let Some(select) = get.select else { return refuse(controller, command, reply, INVALID_FIELD) };
    if get.feature == features::HOST_IDENTIFIER && select != FeatureSelect::Capabilities {
        let is_wide = get.dword11 & WIDE_HOST_ID != 0;
        return match is_wide && command.sgl.length_bytes >= 16 {
            true => reply.data(controller.host_id.to_vec()),
            false => refuse(controller, command, reply, INVALID_FIELD),
        };
    }
    match feature(controller, get.feature, select) {
        Some(value) => reply.result(NvmeStatus::SUCCESS, u64::from(value)),
        None => refuse(controller, command, reply, INVALID_FIELD),
    }
}

/// The value of a feature. `None` for those that there are not.
fn feature(controller: &TargetController, feature: u8, select: FeatureSelect) -> Option<u32> {
    let is_io = controller.subsystem().is_some();
    let (current, default, changeable) = match feature {
        features::ASYNC_EVENT_CONFIGURATION => (controller.event_configuration(), 0, true),
        features::KEEP_ALIVE_TIMER => (controller.kato_ms(), 0, true),
        features::NUMBER_OF_QUEUES if is_io => {
            let all = QueueCount::pairs(u32::from(controller.max_io_queues)).to_value();
            (QueueCount::pairs(u32::from(controller.queue_count())).to_value(), all, true)
        }
        features::VOLATILE_WRITE_CACHE if is_io => (1, 1, false),
        features::ARBITRATION
        | features::POWER_MANAGEMENT
        | features::ERROR_RECOVERY
        | features::WRITE_ATOMICITY
            if is_io =>
        {
            (0, 0, false)
        }
        features::TEMPERATURE_THRESHOLD if is_io => (u32::from(u16::MAX), u32::from(u16::MAX), false),
        features::HOST_IDENTIFIER if is_io => (0, 0, false),
        _ => return None,
    };
    Some(match select {
        FeatureSelect::Current | FeatureSelect::Saved => current,
        FeatureSelect::Default => default,
        FeatureSelect::Capabilities => u32::from(changeable) * features::CHANGEABLE,
    })
}

fn set_features(controller: &TargetController, command: &NvmeCommand) -> Result<u32, NvmeStatus> {
    let set = SetFeatures::from_command(command);
    if set.save {
        return Err(NvmeStatus::FEATURE_NOT_SAVEABLE.do_not_retry());
    }
    let is_io = controller.subsystem().is_some();
    match set.feature {
        features::NUMBER_OF_QUEUES if is_io => {
            // FFFFh in a 0's based field, which the specification does not allow.
            const NONE_ALLOWED: u32 = 65_536;
            let wanted = QueueCount::from_value(set.dword11);
            if wanted.submission == NONE_ALLOWED || wanted.completion == NONE_ALLOWED {
                return Err(INVALID_FIELD);
            }
            let granted = controller.set_queue_count(wanted.submission.min(wanted.completion))?;
            Ok(QueueCount::pairs(u32::from(granted)).to_value())
        }
        features::ASYNC_EVENT_CONFIGURATION => {
            controller.set_event_configuration(set.dword11);
            Ok(0)
        }
        features::KEEP_ALIVE_TIMER => {
            controller.set_kato_ms(set.dword11);
            controller.heard();
            Ok(0)
        }
        // Over fabrics it is what the Connect said (base 5.27.1.25).
        features::HOST_IDENTIFIER if is_io => Err(NvmeStatus::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        features::VOLATILE_WRITE_CACHE
        | features::ARBITRATION
        | features::POWER_MANAGEMENT
        | features::ERROR_RECOVERY
        | features::WRITE_ATOMICITY
        | features::TEMPERATURE_THRESHOLD
            if is_io =>
        {
            Err(NvmeStatus::FEATURE_NOT_CHANGEABLE.do_not_retry())
        }
        _ => Err(INVALID_FIELD),
    }
}
