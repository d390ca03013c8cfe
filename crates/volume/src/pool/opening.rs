//! Opening a pool, or making one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, RwLock, channel};

use underlay_storage::contents;
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceRequest};
use underlay_storage::journal::Journal;
use underlay_storage::layers::mirror::{Mirror, MirrorSettings};

use super::core::{PoolCore, PoolFlusher, VolumeCore};
use super::description::{MemberState, PoolError, PoolSettings};
use super::discards::DiscardQueue;
use super::extent::{BLOCK_BYTES, MappedExtent, PlainExtent, first_unit};
use super::flush_monitor::FlushMonitor;
use super::label::{self, FirstBlock, JOURNAL_MEMBERS, MemberLabel};
use super::log::PoolLog;
use super::map::OutstandingChanges;
use super::member::{ExtentPlaces, FoundDevice, MemberPart, PoolMembers};
use super::overwrite::REGION_EXTENTS;
use super::plain::read_runs;
use super::record::{PoolRecord, PoolTables};
use super::replay::LeftOver;
use super::space::SlabAllocator;
use super::unflushed::{NoteOwner, left_over};
use super::unread::LabelProbeDevice;
use crate::rate::JobTimer;

const KIND: underlay_storage::journal::format::JournalKind = *b"volumes ";

type OpenedDevices = Vec<Arc<dyn BlockDevice>>;

pub(super) fn open(devices: OpenedDevices, settings: PoolSettings) -> Result<Arc<PoolCore>, PoolError> {
    if !(1..256).contains(&devices.len()) {
        return Err(PoolError::Members(devices.len()));
    }
    for (index, device) in devices.iter().enumerate() {
        let block_bytes = device.geometry().block_bytes;
        if block_bytes == 0 || !BLOCK_BYTES.is_multiple_of(u64::from(block_bytes)) {
            return Err(PoolError::Blocks { index, block_bytes });
        }
    }
    let found: Vec<Result<FirstBlock, DeviceError>> =
        devices.iter().map(|device| first_block(&**device)).collect();
    let made = |found: &Result<FirstBlock, DeviceError>| match found {
        Ok(FirstBlock::Label(label)) if label.made => Some(*label),
        _ => None,
    };
    let first_label = found.iter().find_map(made);
    let is_new = first_label.is_none();
    let (labels, unreadable) = match first_label {
        Some(first_label) => known_labels(&devices, &found, &first_label)?,
        None => (make(&devices, &found, &settings)?, vec![false; devices.len()]),
    };
    let map_limit_bytes = labels[0].map_bytes;
    let identity = labels[0].identity;
    let (devices, read_flags) = ask_unread(devices, &labels, &unreadable);
    let outstanding = Arc::new(OutstandingChanges::default());
    let memory = settings.host_memory.as_ref();
    let directory = memory.map(|memory| memory.directory.clone()).unwrap_or_default();
    let unkept = |source| PoolError::HostMemory { directory: directory.clone(), source };
    let unread = |source| PoolError::UnreadNotes { directory: directory.clone(), source };
    // Before the first flush, which may fail.
    outstanding.doubts.begin(memory, identity, devices.len()).map_err(unkept)?;
    let doubts = outstanding.doubts.all();
    let witness = |(index, (device, doubt))| {
        Arc::new(FlushMonitor::new(device, index as u8, doubt, &outstanding)) as Arc<dyn BlockDevice>
    };
    let devices: OpenedDevices = devices.into_iter().zip(doubts).enumerate().map(witness).collect();
    let journal_mirror = open_mirror(&devices, &labels)?;
    let journal_device: Arc<dyn BlockDevice> = match &journal_mirror {
        Some(mirror) => Arc::clone(mirror) as Arc<dyn BlockDevice>,
        None => Arc::new(journal_part(&devices[0], &labels[0])),
    };
    let range = 0..label::journal_range_bytes(map_limit_bytes);
    let (journal, recovered) = Journal::open(journal_device, range, KIND)?;
    let log = PoolLog::new(journal, &recovered).map_err(PoolError::Map)?;
    if labels.iter().any(|label| !label.made) {
        finish_making(&devices, &labels, &log)?;
    }
    drop(recovered);
    let tables = log.with_tables(PoolTables::clone);
    let owner = NoteOwner { identity, session: tables.session };
    let noted = memory.map_or(Ok(Vec::new()), |memory| left_over(memory, owner)).map_err(unread)?;
    let left_over = LeftOver::new(noted);
    let out = left_over.out(&tables.out);
    let slabs: Vec<_> = labels.iter().map(|label| label.first_slab..label.first_slab + label.slabs).collect();
    let space = SlabAllocator::new(&slabs);
    claim_all(&space, &tables).map_err(PoolError::Map)?;
    let found = devices.into_iter().zip(labels).zip(read_flags).enumerate();
    let found = found.map(|(index, ((device, label), is_known))| FoundDevice {
        device,
        label,
        out: out.contains(&(index as u8)),
        is_known,
    });
    let members = PoolMembers::new(found.collect(), Arc::clone(&outstanding));
    let core = Arc::new(PoolCore {
        identity,
        members: Arc::new(members),
        space,
        discards: DiscardQueue::default(),
        log,
        volumes: RwLock::default(),
        flusher: Mutex::new(PoolFlusher::default()),
        epoch: AtomicU64::new(0),
        outstanding,
        map_limit_bytes,
        is_new,
        journal_mirror,
        timer: JobTimer::new(Arc::clone(&settings.clock)),
        clock: settings.clock,
        workers: settings.workers,
        admin: Mutex::new(()),
        closed: AtomicBool::new(false),
    });
    let volumes = tables
        .volumes
        .iter()
        .map(|(number, table)| (*number, core.new_volume(*number, &table.header, &table.extents)));
    core.volumes.write().extend(volumes);
    core.make_again(left_over).map_err(PoolError::Map)?;
    // With the maps complete: what only the notes knew of may have to be written again as well.
    core.settle_all();
    make_alike(&core, &tables)?;
    // The journal knows all of it before it says that older notes are void.
    core.flush_and_wait()?;
    let session = underlay_sync::random_u64();
    let unflushed = &core.outstanding.unflushed;
    if let Some(memory) = memory {
        // Beside the older notes, which hold until the journal names this session.
        unflushed.begin(memory, NoteOwner { identity, session }, owner).map_err(unkept)?;
        // What a member that fails has kept from the journal.
        core.volumes().iter().try_for_each(|volume| volume.map.note_dirty())?;
    }
    core.log.append([PoolRecord::Session { number: session }]);
    core.flush_and_wait()?;
    unflushed.forget_former();
    Ok(core)
}

fn first_block(device: &dyn BlockDevice) -> Result<FirstBlock, DeviceError> {
    let block =
        device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; BLOCK_BYTES as usize] })?;
    Ok(MemberLabel::decode(&block))
}

/// The labels of a pool that exists, and whose could not be read.
fn known_labels(
    devices: &OpenedDevices,
    found: &[Result<FirstBlock, DeviceError>],
    first_label: &MemberLabel,
) -> Result<(Vec<MemberLabel>, Vec<bool>), PoolError> {
    let other = |index, problem: String| PoolError::OtherPool { index, problem };
    if usize::from(first_label.members) != devices.len() {
        let index = usize::from(first_label.index);
        return Err(other(
            index,
            format!("its pool has {} members, not {}", first_label.members, devices.len()),
        ));
    }
    let capacities: Vec<u64> = devices.iter().map(|device| device.geometry().capacity_bytes).collect();
    let mut labels = Vec::new();
    for (index, found) in found.iter().enumerate() {
        match found {
            Ok(FirstBlock::Label(label)) if label.identity == first_label.identity => {
                if usize::from(label.index) != index {
                    return Err(other(
                        index,
                        format!("it was created as member {}: put the members in that order", label.index),
                    ));
                }
                let needed_bytes =
                    label.data_start_bytes() + u64::from(label.slabs) * super::extent::EXTENT_BYTES;
                if capacities[index] < needed_bytes {
                    return Err(PoolError::TooSmall {
                        index,
                        capacity_bytes: capacities[index],
                        needed_bytes,
                    });
                }
                labels.push(Some(*label));
            }
            Ok(FirstBlock::Label(_)) => return Err(other(index, "it belongs to another pool".into())),
            Ok(FirstBlock::Blank) => return Err(PoolError::Missing { index }),
            Ok(FirstBlock::Foreign) => {
                return Err(other(index, "its label is damaged or not a pool's".into()));
            }
            Err(_) => labels.push(None),
        }
    }
    // A member whose label can't be read has the slabs between its neighbours'; the last one's follow from its
    // capacity.
    let unreadable: Vec<bool> = labels.iter().map(Option::is_none).collect();
    let mut complete: Vec<MemberLabel> = Vec::new();
    for index in 0..labels.len() {
        let first_slab = complete.last().map_or(0, |before| before.first_slab + before.slabs);
        let mut label = labels[index].unwrap_or(MemberLabel {
            index: index as u16,
            first_slab,
            slabs: 0,
            made: true,
            ..*first_label
        });
        if labels[index].is_none() {
            let room =
                capacities[index].saturating_sub(label.data_start_bytes()) / super::extent::EXTENT_BYTES;
            let next = labels.get(index + 1).copied().flatten().map(|next| next.first_slab);
            label.slabs = next.map_or(room as u32, |next| next.saturating_sub(first_slab));
        }
        if label.first_slab != first_slab {
            return Err(other(index, "its slabs do not follow those of the member before".into()));
        }
        complete.push(label);
    }
    Ok((complete, unreadable))
}

/// Members whose label could not be read are asked for it again before anything else.
fn ask_unread(
    devices: OpenedDevices,
    labels: &[MemberLabel],
    unreadable: &[bool],
) -> (OpenedDevices, Vec<Option<Arc<AtomicBool>>>) {
    let ask = |((device, label), unreadable): ((Arc<dyn BlockDevice>, &MemberLabel), &bool)| {
        if !*unreadable {
            return (device, None);
        }
        let unread = LabelProbeDevice::new(device, *label);
        let is_known = unread.is_known();
        (Arc::new(unread) as Arc<dyn BlockDevice>, Some(is_known))
    };
    devices.into_iter().zip(labels).zip(unreadable).map(ask).unzip()
}

/// Labels all members as those of a pool that is being made.
fn make(
    devices: &OpenedDevices,
    found: &[Result<FirstBlock, DeviceError>],
    settings: &PoolSettings,
) -> Result<Vec<MemberLabel>, PoolError> {
    let mut foreign = Vec::new();
    for (index, (device, found)) in devices.iter().zip(found).enumerate() {
        let is_foreign = match found {
            // Making it was interrupted: nobody has used it.
            Ok(FirstBlock::Label(_)) => false,
            Ok(FirstBlock::Foreign) => true,
            // Many file systems leave the first block alone.
            Ok(FirstBlock::Blank) => contents::inspect_device(&**device)?.is_some(),
            Err(error) => return Err(error.clone().into()),
        };
        if is_foreign && !settings.format {
            return Err(PoolError::NotBlank { index });
        }
        foreign.extend(is_foreign.then_some(device));
    }
    for device in foreign {
        contents::erase(&**device)?;
    }
    // Unlike any other pool's; nothing is kept secret by it.
    let identity = underlay_sync::random_u64();
    let capacities: Vec<u64> = devices.iter().map(|device| device.geometry().capacity_bytes).collect();
    let labels = label::lay_out(&capacities, settings.map_bytes, identity)?;
    for (device, label) in devices.iter().zip(&labels) {
        device.execute(DeviceRequest::Write { offset_bytes: 0, data: label.encode(), fua: true })?;
        if usize::from(label.index) < JOURNAL_MEMBERS {
            let length_bytes = label.journal_bytes;
            device.execute(DeviceRequest::Discard { offset_bytes: BLOCK_BYTES, length_bytes })?;
            device.execute(DeviceRequest::Flush)?;
        }
    }
    Ok(labels)
}

/// From now on it is a pool.
fn finish_making(devices: &OpenedDevices, labels: &[MemberLabel], log: &PoolLog) -> Result<(), PoolError> {
    if log.with_tables(|tables| !tables.volumes.is_empty()) {
        return Err(PoolError::Map("the pool was never completed, but has volumes".to_owned()));
    }
    for (device, label) in devices.iter().zip(labels) {
        // A crash in between does no harm: the next opening finds one finished label and finishes the others.
        let data = MemberLabel { made: true, ..*label }.encode();
        device.execute(DeviceRequest::Write { offset_bytes: 0, data, fua: true })?;
    }
    Ok(())
}

fn journal_part(device: &Arc<dyn BlockDevice>, label: &MemberLabel) -> MemberPart {
    MemberPart { device: Arc::clone(device), start_bytes: BLOCK_BYTES, length_bytes: label.journal_bytes }
}

fn open_mirror(devices: &OpenedDevices, labels: &[MemberLabel]) -> Result<Option<Arc<Mirror>>, PoolError> {
    if devices.len() < JOURNAL_MEMBERS {
        return Ok(None);
    }
    let parts = devices.iter().zip(labels).take(JOURNAL_MEMBERS);
    let parts = parts.map(|(device, label)| Arc::new(journal_part(device, label)) as Arc<dyn BlockDevice>);
    Ok(Some(Arc::new(Mirror::open(parts.collect(), MirrorSettings::default())?)))
}

/// Takes everything that maps point to.
fn claim_all(space: &SlabAllocator, tables: &PoolTables) -> Result<(), String> {
    for (number, table) in &tables.volumes {
        for (index, extent) in &table.extents {
            let packed = matches!(extent, MappedExtent::Packed(_));
            if packed != table.header.spec.compress.is_some() {
                return Err(format!(
                    "extent {index} of volume {number} is stored in another way than the volume"
                ));
            }
            for piece in extent.pieces() {
                if !space.claim(piece) {
                    return Err(format!(
                        "extent {index} of volume {number} claims {piece:?}, which is not available"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Makes the copies alike of what was being written over when the pool was last in use.
fn make_alike(core: &Arc<PoolCore>, tables: &PoolTables) -> Result<(), PoolError> {
    let mut cleared = Vec::new();
    for volume in core.volumes() {
        for &region in tables.volumes.get(&volume.number).into_iter().flat_map(|table| &table.intents) {
            if make_region_alike(core, &volume, region)? {
                cleared.push(PoolRecord::Intent { volume: volume.number, region, set: false });
            }
        }
    }
    if cleared.is_empty() {
        return Ok(());
    }
    let (sender, receiver) = channel();
    core.members.flush(move |results| {
        let _ = sender.send(results.into_iter().collect::<Result<Vec<()>, DeviceError>>());
    });
    // Without it they stay marked, and are copied again the next time.
    if let Ok(Ok(_)) = receiver.recv() {
        core.log.append(cleared);
    }
    Ok(())
}

/// False if a member that should have a copy is out.
fn make_region_alike(core: &Arc<PoolCore>, volume: &VolumeCore, region: u32) -> Result<bool, PoolError> {
    let mut is_alike = true;
    for extent in
        region.saturating_mul(REGION_EXTENTS)..region.saturating_add(1).saturating_mul(REGION_EXTENTS)
    {
        let Some(MappedExtent::Plain(plain)) = volume.map.get(extent) else { continue };
        let Some(second) = plain.copy else { continue };
        let slabs = [plain.slab, second];
        let members = slabs.map(|slab| core.members.index_of(first_unit(slab)));
        if members.iter().any(|index| core.members.list[*index].state() != MemberState::InUse) {
            is_alike = false;
            continue;
        }
        if let Err((failed, error)) = copy_either(core, &plain, slabs) {
            is_alike = false;
            let left_out = if is_planted(PlantedBug::HealthyMemberLeftOut) { Some(1) } else { failed };
            if !left_out.is_some_and(|copy| core.members.leave_out(members[copy])) {
                return Err(PoolError::NotAlike { volume: volume.name(), members, error });
            }
        }
    }
    Ok(is_alike)
}

/// Either copy will do: each block of it is as it was before an unanswered write or after it. Says which of the two
/// failed a request that the other one could not make up for; none where both did.
fn copy_either(
    core: &Arc<PoolCore>,
    plain: &PlainExtent,
    slabs: [u32; 2],
) -> Result<(), (Option<usize>, DeviceError)> {
    let mut error = DeviceError::Gone;
    for from in [0, 1] {
        let data = match read_slab(core, plain, slabs[from]) {
            Ok(data) => data,
            Err(unreadable) => {
                error = unreadable;
                continue;
            }
        };
        // Where it was read from as well: a flush that failed may have left it there in a cache alone.
        for to in [1 - from, from] {
            write_slab(core, slabs[to], &data).map_err(|error| (Some(to), error))?;
        }
        return Ok(());
    }
    Err((None, error))
}

fn read_slab(
    core: &Arc<PoolCore>,
    plain: &PlainExtent,
    slab: u32,
) -> Result<Vec<(u32, Vec<u8>)>, DeviceError> {
    let (sender, receiver) = channel();
    read_runs(core, &PlainExtent { slab, copy: None, ..*plain }, plain.valid, move |read| {
        let _ = sender.send(read);
    });
    receiver.recv().unwrap_or(Err(DeviceError::Gone))
}

fn write_slab(core: &Arc<PoolCore>, slab: u32, pieces: &[(u32, Vec<u8>)]) -> Result<(), DeviceError> {
    for (block, data) in pieces {
        let (sender, receiver) = channel();
        let place = ExtentPlaces { first: first_unit(slab), second: None }.shifted(*block);
        let done = move |completion: DeviceCompletion| {
            let _ = sender.send(completion);
        };
        core.members.write(place, data.clone(), false, Box::new(done));
        receiver.recv().unwrap_or(Err(DeviceError::Gone))?;
    }
    Ok(())
}
