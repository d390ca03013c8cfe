//! Commands of I/O queues (NVM 3.2), handed to the device that the namespace is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use underlay_storage::device::{DeviceError, DeviceRequest};

use crate::command::{ALL_NAMESPACES, DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, NvmeCommand, nvm};
use crate::status::NvmeStatus;
use crate::target::connection::{MAX_TRANSFER_BYTES, TargetConnection};
use crate::target::counters::count;
use crate::target::lease::WriteDenial;
use crate::target::subsystems::controller::queue::CommandReply;
use crate::target::subsystems::{NvmSubsystem, TargetNamespace};

/// A command's part of its connection's budget, for the data that it moves.
pub(in crate::target) fn budget_bytes(
    command: &NvmeCommand,
    length_bytes: usize,
    namespace: Option<&TargetNamespace>,
) -> usize {
    match command.opcode {
        // The host's data and the device's.
        nvm::COMPARE => length_bytes * 2,
        nvm::WRITE_ZEROES if command.dwords[2] & DEALLOCATE == 0 => {
            let block_bytes = namespace.map_or(512, |namespace| namespace.block_bytes);
            let zeros = u64::from(command.block_count()) * u64::from(block_bytes);
            zeros.min(u64::from(MAX_TRANSFER_BYTES)) as usize
        }
        _ => length_bytes,
    }
}

pub(in crate::target) fn execute(
    connection: &mut TargetConnection,
    command: &NvmeCommand,
    data: Vec<u8>,
    reply: CommandReply,
) {
    let subsystem = connection.queue.association().and_then(|association| association.controller.subsystem());
    let Some(subsystem) = subsystem.map(Arc::clone) else {
        return reply.status(NvmeStatus::INVALID_OPCODE.do_not_retry());
    };
    if command.opcode == nvm::FLUSH && command.nsid == ALL_NAMESPACES {
        return flush_all(subsystem.namespaces(), reply);
    }
    let Some(namespace) = find(connection, &subsystem, command.nsid) else {
        return refuse(reply, command, NvmeStatus::INVALID_NAMESPACE);
    };
    // Commands at a device count, and a connection that is over gives it none.
    let Some(reply) = reply.count_at_device() else { return };
    if writes(command)
        && let Some(controller) = reply.queue().association().map(|association| &association.controller)
        && let Err(denied) = namespace.lease.admit_again(
            &mut connection.last_admission,
            (&controller.host_nqn, &controller.host_id, controller.instance()),
            &*subsystem,
        )
    {
        return match denied {
            WriteDenial::Held => refuse(reply, command, NvmeStatus::RESERVATION_CONFLICT),
            WriteDenial::Busy => reply.status(NvmeStatus::NAMESPACE_NOT_READY),
            WriteDenial::NotStored => refuse(reply, command, NvmeStatus::INTERNAL_ERROR),
        };
    }
    let device_command = DeviceCommand { namespace, nsid: command.nsid, lba: command.lba(), reply };
    let outcome = match command.opcode {
        nvm::READ => read(device_command, command),
        nvm::WRITE => write(device_command, command, data),
        nvm::FLUSH => {
            flush(device_command);
            Ok(())
        }
        nvm::COMPARE => compare(device_command, command, data),
        nvm::WRITE_ZEROES => write_zeroes(device_command, command),
        nvm::DATASET_MANAGEMENT => manage_dataset(device_command, command, &data),
        _ => Err((NvmeStatus::INVALID_OPCODE, device_command)),
    };
    if let Err((status, device_command)) = outcome {
        refuse(device_command.reply, command, status);
    }
}

/// Whether a command changes blocks, and so needs the lease.
fn writes(command: &NvmeCommand) -> bool {
    match command.opcode {
        nvm::WRITE | nvm::WRITE_ZEROES => true,
        nvm::DATASET_MANAGEMENT => command.dwords[1] & DATASET_DEALLOCATE != 0,
        _ => false,
    }
}

/// The namespace, which mostly is the one that the queue used last.
fn find(
    connection: &mut TargetConnection,
    subsystem: &Arc<NvmSubsystem>,
    nsid: u32,
) -> Option<Arc<TargetNamespace>> {
    // Read before the look-up: if the set changes in between, the next command finds a newer number.
    let generation = subsystem.generation();
    if let Some((then, last)) = &connection.last_namespace
        && *then == generation
        && last.nsid == nsid
    {
        return Some(Arc::clone(last));
    }
    let namespace = subsystem.namespace(nsid)?;
    connection.last_namespace = Some((generation, Arc::clone(&namespace)));
    // The lease is per namespace: an admission to the former one says nothing about this one.
    connection.last_admission = None;
    Some(namespace)
}

/// A command that can't be carried out as it is, and couldn't another time.
fn refuse(reply: CommandReply, command: &NvmeCommand, status: NvmeStatus) {
    let status = status.do_not_retry();
    log(&reply, status, command.lba(), command.nsid);
    reply.status(status.with_more());
}

fn log(reply: &CommandReply, status: NvmeStatus, lba: u64, nsid: u32) {
    if let Some(association) = reply.queue().association() {
        association.controller.log_error(association.queue_id, reply.cid(), status, lba, nsid);
    }
}

/// A command on its way through a device.
struct DeviceCommand {
    namespace: Arc<TargetNamespace>,
    nsid: u32,
    lba: u64,
    reply: CommandReply,
}

/// Which error of the medium an I/O error is.
#[derive(Clone, Copy)]
enum MediumAccess {
    Reading,
    Writing,
}

type CommandRefusal = (NvmeStatus, DeviceCommand);

impl DeviceCommand {
    fn done(self, outcome: Result<(), DeviceError>, access: MediumAccess) {
        match outcome {
            Ok(()) => self.reply.success(),
            Err(error) => self.failed(&error, access),
        }
    }

    fn failed(self, error: &DeviceError, access: MediumAccess) {
        count(&self.namespace.counting.errors, 1);
        let status = match (error, access) {
            (DeviceError::NoSpace, _) => NvmeStatus::CAPACITY_EXCEEDED,
            (DeviceError::Gone, _) => NvmeStatus::NAMESPACE_NOT_READY,
            (DeviceError::OutOfRange { .. }, _) => NvmeStatus::LBA_OUT_OF_RANGE,
            (DeviceError::Unaligned { .. }, _) => NvmeStatus::INVALID_FIELD,
            (DeviceError::Io(_), MediumAccess::Reading) => NvmeStatus::UNRECOVERED_READ_ERROR,
            (DeviceError::Io(_), MediumAccess::Writing) => NvmeStatus::WRITE_FAULT,
        };
        self.fail(status);
    }

    fn fail(self, status: NvmeStatus) {
        let status = status.do_not_retry();
        log(&self.reply, status, self.lba, self.nsid);
        self.reply.status(status.with_more());
    }
}

/// Offset and length in bytes of blocks that are inside of the namespace.
fn extent(namespace: &TargetNamespace, lba: u64, blocks: u64) -> Result<(u64, u64), NvmeStatus> {
    match lba.checked_add(blocks) {
        Some(end) if end <= namespace.blocks() => {
            let block_bytes = u64::from(namespace.block_bytes);
            Ok((lba * block_bytes, blocks * block_bytes))
        }
        _ => Err(NvmeStatus::LBA_OUT_OF_RANGE),
    }
}

/// The extent of a command that moves `length_bytes` of data.
fn moved(
    namespace: &TargetNamespace,
    command: &NvmeCommand,
    length_bytes: usize,
) -> Result<(u64, u64), NvmeStatus> {
    let (offset, length) = extent(namespace, command.lba(), u64::from(command.block_count()))?;
    if length > u64::from(MAX_TRANSFER_BYTES) {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if length == length_bytes as u64 { Ok((offset, length)) } else { Err(NvmeStatus::DATA_LENGTH_INVALID) }
}

fn read(device_command: DeviceCommand, command: &NvmeCommand) -> Result<(), CommandRefusal> {
    let place = moved(&device_command.namespace, command, command.sgl.length_bytes as usize);
    let (offset_bytes, length_bytes) = match place {
        Ok(place) => place,
        Err(status) => return Err((status, device_command)),
    };
    let counting = &device_command.namespace.counting;
    count(&counting.reads, 1);
    count(&counting.read_bytes, length_bytes);
    let length = length_bytes as usize;
    let buffer = device_command.reply.queue().buffers.take(length);
    let namespace = Arc::clone(&device_command.namespace);
    namespace.device.submit(
        DeviceRequest::Read { offset_bytes, buffer },
        Box::new(move |completion| match completion {
            Ok(data) if data.len() == length => device_command.reply.data(data),
            Ok(_) => device_command.fail(NvmeStatus::INTERNAL_ERROR),
            Err(error) => device_command.failed(&error, MediumAccess::Reading),
        }),
    );
    Ok(())
}

fn write(device_command: DeviceCommand, command: &NvmeCommand, data: Vec<u8>) -> Result<(), CommandRefusal> {
    let (offset_bytes, length_bytes) = match moved(&device_command.namespace, command, data.len()) {
        Ok(place) => place,
        Err(status) => return Err((status, device_command)),
    };
    let counting = &device_command.namespace.counting;
    count(&counting.writes, 1);
    count(&counting.written_bytes, length_bytes);
    let fua = command.is_fua() && !is_planted(PlantedBug::ForcedWriteNotForced);
    let namespace = Arc::clone(&device_command.namespace);
    namespace.device.submit(
        DeviceRequest::Write { offset_bytes, data, fua },
        Box::new(move |completion| device_command.done(completion.map(drop), MediumAccess::Writing)),
    );
    Ok(())
}

fn flush(device_command: DeviceCommand) {
    count(&device_command.namespace.counting.flushes, 1);
    let namespace = Arc::clone(&device_command.namespace);
    let done = move |completion: underlay_storage::device::DeviceCompletion| {
        device_command.done(completion.map(drop), MediumAccess::Writing);
    };
    namespace.device.submit(DeviceRequest::Flush, Box::new(done));
}

fn compare(
    device_command: DeviceCommand,
    command: &NvmeCommand,
    expected: Vec<u8>,
) -> Result<(), CommandRefusal> {
    let (offset_bytes, _) = match moved(&device_command.namespace, command, expected.len()) {
        Ok(place) => place,
        Err(status) => return Err((status, device_command)),
    };
    count(&device_command.namespace.counting.compares, 1);
    let buffer = device_command.reply.queue().buffers.take(expected.len());
    let namespace = Arc::clone(&device_command.namespace);
    namespace.device.submit(
        DeviceRequest::Read { offset_bytes, buffer },
        Box::new(move |completion| match completion {
            Ok(found) => {
                let is_same = found == expected;
                device_command.reply.queue().buffers.put(found);
                match is_same {
                    true => device_command.reply.success(),
                    false => device_command.reply.status(NvmeStatus::COMPARE_FAILURE.do_not_retry()),
                }
            }
            Err(error) => device_command.failed(&error, MediumAccess::Reading),
        }),
    );
    Ok(())
}

fn write_zeroes(device_command: DeviceCommand, command: &NvmeCommand) -> Result<(), CommandRefusal> {
    let place = extent(&device_command.namespace, command.lba(), u64::from(command.block_count()));
    let (offset_bytes, length_bytes) = match place {
        Ok(place) => place,
        Err(status) => return Err((status, device_command)),
    };
    let fua = command.is_fua();
    if command.dwords[2] & DEALLOCATE != 0 {
        count_discard(&device_command.namespace, length_bytes);
        let request = DeviceRequest::Discard { offset_bytes, length_bytes };
        // A discard has no FUA of its own; a flush behind it does the same.
        discard_all(device_command, vec![request], fua);
        return Ok(());
    }
    if length_bytes > u64::from(MAX_TRANSFER_BYTES) {
        return Err((NvmeStatus::INVALID_FIELD, device_command));
    }
    let counting = &device_command.namespace.counting;
    count(&counting.writes, 1);
    count(&counting.written_bytes, length_bytes);
    let namespace = Arc::clone(&device_command.namespace);
    let data = vec![0; length_bytes as usize];
    namespace.device.submit(
        DeviceRequest::Write { offset_bytes, data, fua },
        Box::new(move |completion| device_command.done(completion.map(drop), MediumAccess::Writing)),
    );
    Ok(())
}

fn manage_dataset(
    device_command: DeviceCommand,
    command: &NvmeCommand,
    data: &[u8],
) -> Result<(), CommandRefusal> {
    let count_of_ranges = (command.dwords[0] & 0xff) as usize + 1;
    if data.len() < count_of_ranges * DatasetRange::BYTES {
        return Err((NvmeStatus::DATA_LENGTH_INVALID, device_command));
    }
    if command.dwords[1] & DATASET_DEALLOCATE == 0 {
        // Hints of how the ranges will be used, which are ignored.
        device_command.reply.success();
        return Ok(());
    }
    let ranges = DatasetRange::decode_all(data).take(count_of_ranges);
    // All ranges are checked before the first is discarded: a command refused for one has changed nothing.
    let extents: Result<Vec<_>, NvmeStatus> =
        ranges.map(|range| extent(&device_command.namespace, range.lba, u64::from(range.blocks))).collect();
    let extents = match extents {
        Ok(extents) => extents,
        Err(status) => return Err((status, device_command)),
    };
    let mut requests = Vec::new();
    for (offset_bytes, length_bytes) in extents.into_iter().filter(|(_, length)| *length > 0) {
        count_discard(&device_command.namespace, length_bytes);
        requests.push(DeviceRequest::Discard { offset_bytes, length_bytes });
    }
    discard_all(device_command, requests, false);
    Ok(())
}

fn count_discard(namespace: &TargetNamespace, length_bytes: u64) {
    count(&namespace.counting.discards, 1);
    count(&namespace.counting.discarded_bytes, length_bytes);
}

/// Discards at once, and then, if asked, flushes.
fn discard_all(device_command: DeviceCommand, requests: Vec<DeviceRequest>, flush_behind: bool) {
    let namespace = Arc::clone(&device_command.namespace);
    let all = CombinedRequests::new(requests.len(), move |outcome| match outcome {
        Ok(()) if flush_behind => flush(device_command),
        outcome => device_command.done(outcome, MediumAccess::Writing),
    });
    for request in requests {
        let all = Arc::clone(&all);
        namespace.device.submit(request, Box::new(move |completion| all.one_is_done(completion.map(drop))));
    }
    // The extra count of `CombinedRequests::new`: without it a device that answers at once would end the command
    // before the last request is submitted, and a command without requests would never end.
    all.one_is_done(Ok(()));
}

fn flush_all(namespaces: Vec<Arc<TargetNamespace>>, reply: CommandReply) {
    let Some(reply) = reply.count_at_device() else { return };
    let all = CombinedRequests::new(namespaces.len(), move |outcome| match outcome {
        Ok(()) => reply.success(),
        Err(_) => {
            log(&reply, NvmeStatus::WRITE_FAULT, 0, ALL_NAMESPACES);
            reply.status(NvmeStatus::WRITE_FAULT.do_not_retry().with_more());
        }
    });
    for namespace in namespaces {
        count(&namespace.counting.flushes, 1);
        let all = Arc::clone(&all);
        namespace
            .device
            .submit(DeviceRequest::Flush, Box::new(move |completion| all.one_is_done(completion.map(drop))));
    }
    all.one_is_done(Ok(()));
}

type CommandCallback = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

/// Several requests that are one command: the last one that is done ends it, with the first error if there was one.
struct CombinedRequests {
    left: AtomicUsize,
    first_error: Mutex<Option<DeviceError>>,
    over: Mutex<Option<CommandCallback>>,
}

impl CombinedRequests {
    /// For this many requests, plus one call of [`CombinedRequests::one_is_done`] once all are submitted.
    fn new(
        requests: usize,
        over: impl FnOnce(Result<(), DeviceError>) + Send + 'static,
    ) -> Arc<CombinedRequests> {
        Arc::new(CombinedRequests {
            left: AtomicUsize::new(requests + 1),
            first_error: Mutex::default(),
            over: Mutex::new(Some(Box::new(over))),
        })
    }

    fn one_is_done(&self, outcome: Result<(), DeviceError>) {
        if let Err(error) = outcome {
            let mut first = self.first_error.lock();
            first.get_or_insert(error);
        }
        // After the error is stored: the thread that counts down to zero sees it.
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let error = self.first_error.lock().take();
            let over = self.over.lock().take();
            if let Some(over) = over {
                over(error.map_or(Ok(()), Err));
            }
        }
    }
}
