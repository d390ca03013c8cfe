//! Flash devices: dies behind channels behind a controller behind an interface, a write buffer, and a page-mapped
//! translation layer.
//!
//! A read is split by pages. Each page is read from its die into a register, crosses its channel, then the
//! interface; each of these serves one at a time, in the order in which they come to it. Logical pages are
//! striped over channels first, then over dies.
//!
//! A write completes as it enters the write buffer; when that is full, it waits for room. The buffer drains
//! at a steady rate, page by page over all dies in turn, and what garbage collection copies on account of a
//! write drains with it: see [`translation`] for how much that is. Programs, copies and erases occupy dies, and
//! the reads of a die wait for them, at most as long as it takes to suspend them: see [`die`].
//!
//! `docs/models/flash.md` has the sources, and what is left out.

mod admission;
mod bus;
mod die;
mod dies;
mod drain;
pub mod ftl;
mod ordered_die;
mod slc;
mod translation;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use underlay_record::FlashWear;

use crate::catalogue::{FlashParameters, SourcedQuantity};
use crate::media::{scaled_buffer_bytes, transfer_ns, us_to_ns};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::stack::InitialState;
use crate::time::ModelTime;

use admission::{CommandSlots, WriteStall};
use bus::FlashBus;
use die::SuspendLimit;
use dies::DieArray;
use drain::BufferedFlashWrite;
use ordered_die::SuspendRules;
use slc::SlcCache;
use translation::{FlashTranslation, ProgramWork, TranslationShape};

/// The unit of mapping: a smaller write costs as much.
const MAPPING_BYTES: u64 = 4096;
/// A flash device in virtual time.
#[derive(Debug)]
pub struct FlashModel {
    capacity_bytes: u64,
    seed: u64,
    channels: u64,
    dies_per_channel: u64,
    page_bytes: u64,
    /// By the kind of page: fast, middle, slow.
    page_read_ns: [u64; 3],
    page_program_ns: u64,
    block_erase_ns: u64,
    pages_per_block: f64,
    channel_mb_s: f64,
    interface_read_mb_s: f64,
    interface_write_mb_s: f64,
    half_duplex: bool,
    command_read_ns: u64,
    command_write_ns: u64,
    read_gap_ns: u64,
    write_gap_ns: u64,
    program_mb_s: f64,
    /// What a die programs at once.
    program_bytes: u64,
    /// The buffer gathers for programs of several pages: nothing is programmed before there is so much, unless
    /// something waits for it.
    gathers: bool,
    gather_bytes: u64,
    /// Copies are made in turns of so much; while writes wait, piecemeal if garbage collection yields.
    turn_bytes: f64,
    yields: bool,
    /// Pages that garbage collection reads from a die in one go.
    copy_run: u64,
    rated_write_bytes: u64,
    buffer_limit_bytes: u64,
    flush_ns: u64,
    power_loss_protection: bool,

    events: BinaryHeap<Reverse<(u64, u64, FlashEvent)>>,
    /// Orders events of the same instant as they were made.
    next_event: u64,
    /// `None` when the controller holds any number of commands.
    slots: Option<CommandSlots>,
    stall: Option<WriteStall>,
    controller: FlashBus,
    dies: DieArray,
    channel_free_ns: Vec<u64>,
    interface_read: FlashBus,
    interface_write: FlashBus,
    /// Pages still to come, for each read in flight.
    reading: HashMap<RequestId, u64>,

    /// `None` when data is written in place.
    translation: Option<FlashTranslation>,
    slc: Option<SlcCache>,
    /// Copies that are due but do not yet make a turn.
    copies_due_bytes: f64,
    /// Reads of pages whose valid units are to be copied, and erases, that are due but in fractions.
    copy_reads_due: f64,
    erases_due: f64,
    copy_reads: u64,
    next_erased: u64,
    host_write_bytes: f64,
    programmed_bytes: f64,
    erased_blocks: u64,

    buffered_bytes: u64,
    backlog: VecDeque<BufferedFlashWrite>,
    /// Of all of it, still to be programmed.
    backlog_bytes: f64,
    /// The write that last filled each 4 KiB block which is in the buffer.
    buffered_blocks: HashMap<u64, u64>,
    waiting_writes: VecDeque<(ModelRequest, ProgramWork)>,
    draining: bool,
    next_die: u64,
    accepted: u64,
    drained: u64,
    /// When the last write was given to the dies.
    drained_ns: u64,
    /// Flushes and FUA writes without power-loss protection: finished when write number `.1` is programmed.
    waiting_drains: Vec<(RequestId, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FlashEvent {
    /// The controller has taken the command.
    Arrive(FlashCommand),
    /// A page lies in its die's register.
    PageRead(PageTransfer),
    /// A page, or buffered data, is ready for the interface.
    PageMoved(PageTransfer),
    PageSent(RequestId),
    /// A write's data has come over the interface.
    Received(FlashCommand),
    /// This many bytes of the buffer's backlog have been given to the dies.
    Drained(u64),
    Finish(RequestId),
}

/// `ModelRequest` with an order, which the heap of events needs; `kind` stands for its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlashCommand {
    id: RequestId,
    kind: u8,
    offset_bytes: u64,
    length_bytes: u64,
    fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PageTransfer {
    id: RequestId,
    channel: u64,
    bytes: u64,
}

impl FlashCommand {
    fn from_request(request: ModelRequest) -> FlashCommand {
        let kind = match request.operation {
            ModelOperation::Read => 0,
            ModelOperation::Write => 1,
            ModelOperation::Flush => 2,
            ModelOperation::Discard => 3,
        };
        let ModelRequest { id, offset_bytes, length_bytes, fua, .. } = request;
        FlashCommand { id, kind, offset_bytes, length_bytes, fua }
    }

    fn request(self) -> ModelRequest {
        let operation = match self.kind {
            0 => ModelOperation::Read,
            1 => ModelOperation::Write,
            2 => ModelOperation::Flush,
            _ => ModelOperation::Discard,
        };
        let FlashCommand { id, offset_bytes, length_bytes, fua, .. } = self;
        ModelRequest { id, operation, offset_bytes, length_bytes, fua }
    }
}

impl FlashModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(
        parameters: &FlashParameters,
        capacity_bytes: u64,
        scale: f64,
        seed: u64,
        initial: InitialState,
    ) -> FlashModel {
        let p = parameters;
        let (channels, dies_per_channel) = (p.channels.value as u64, p.dies_per_channel.value as u64);
        let read_ns = |share: f64| us_to_ns(p.page_read_us.value * share);
        let spread = p.page_read_spread.value;
        let skew = or_default(&p.page_read_skew, 0.0);
        let page_bytes = p.page_bytes.value as u64;
        let dies = channels * dies_per_channel;
        let over_provisioning = p.over_provisioning_percent.value / 100.0;
        let superblock_bytes =
            channels as f64 * dies_per_channel as f64 * p.page_bytes.value * p.pages_per_block.value;
        let shape = TranslationShape {
            capacity_bytes,
            over_provisioning,
            // As many as the device has in full size: `scale` makes its blocks smaller, not fewer.
            superblocks: capacity_bytes as f64 / scale * (1.0 + over_provisioning) / superblock_bytes,
        };
        let translation = (!p.in_place.value).then(|| FlashTranslation::new(&shape, seed, initial));
        let slc = match (&p.slc_cache_bytes, &p.slc_program_mb_s) {
            (Some(bytes), Some(rate)) => {
                // In its steady state a device has filled its cache long ago.
                let initial_bytes = if initial == InitialState::Steady { bytes.value * scale } else { 0.0 };
                Some(SlcCache {
                    capacity_bytes: bytes.value * scale,
                    program_mb_s: rate.value,
                    fold_mb_s: p.program_mb_s.value,
                    used_bytes: initial_bytes,
                    initial_bytes,
                    idle_since_ns: 0,
                    folded_bytes: 0.0,
                })
            }
            _ => None,
        };
        FlashModel {
            capacity_bytes,
            seed,
            channels,
            dies_per_channel,
            page_bytes,
            page_read_ns: [read_ns(1.0 - spread), read_ns(1.0 + skew * spread), read_ns(1.0 + spread)],
            page_program_ns: us_to_ns(p.page_program_us.value),
            block_erase_ns: us_to_ns(p.block_erase_us.value),
            pages_per_block: p.pages_per_block.value,
            channel_mb_s: p.channel_mb_s.value,
            interface_read_mb_s: p.interface_read_mb_s.value,
            interface_write_mb_s: p.interface_write_mb_s.value,
            half_duplex: p.half_duplex.value,
            command_read_ns: us_to_ns(p.command_read_us.value),
            command_write_ns: us_to_ns(p.command_write_us.value),
            read_gap_ns: (1e9 / p.read_iops.value).round() as u64,
            write_gap_ns: (1e9 / p.write_iops.value).round() as u64,
            program_mb_s: p.program_mb_s.value,
            program_bytes: page_bytes * or_default(&p.program_pages, 1.0) as u64,
            gathers: p.program_pages.is_some(),
            gather_bytes: p
                .gather_pages
                .as_ref()
                .or(p.program_pages.as_ref())
                .map_or(0, |pages| page_bytes * pages.value as u64),
            yields: p.copy_turn_bytes.is_some(),
            // A page on every die, as firmware fills its stripes.
            turn_bytes: or_default(&p.copy_turn_bytes, (dies * page_bytes) as f64),
            copy_run: or_default(&p.copy_run_pages, 1.0) as u64,
            rated_write_bytes: (p.rated_write_tb.value * 1e12) as u64,
            buffer_limit_bytes: buffer_limit_bytes(p, scale),
            flush_ns: us_to_ns(p.flush_us.value),
            power_loss_protection: p.power_loss_protection.value,
            events: BinaryHeap::new(),
            next_event: 0,
            slots: p.command_slots.as_ref().map(|slots| CommandSlots::new(slots.value as u64)),
            stall: p
                .write_stall_us
                .as_ref()
                .zip(p.write_stall_bytes.as_ref())
                .map(|(span_us, every)| WriteStall::new(us_to_ns(span_us.value), every.value as u64)),
            controller: FlashBus::default(),
            dies: Self::dies(p),
            channel_free_ns: vec![0; channels as usize],
            interface_read: FlashBus::default(),
            interface_write: FlashBus::default(),
            reading: HashMap::new(),
            translation,
            slc,
            copies_due_bytes: 0.0,
            copy_reads_due: 0.0,
            erases_due: 0.0,
            copy_reads: 0,
            next_erased: 0,
            host_write_bytes: 0.0,
            programmed_bytes: 0.0,
            erased_blocks: 0,
            buffered_bytes: 0,
            backlog: VecDeque::new(),
            backlog_bytes: 0.0,
            buffered_blocks: HashMap::new(),
            waiting_writes: VecDeque::new(),
            draining: false,
            next_die: 0,
            accepted: 0,
            drained: 0,
            drained_ns: 0,
            waiting_drains: Vec::new(),
        }
    }

    fn dies(p: &FlashParameters) -> DieArray {
        let dies = p.channels.value as u64 * p.dies_per_channel.value as u64;
        let (program_ns, erase_ns) =
            (us_to_ns(p.program_suspend_us.value), us_to_ns(p.erase_suspend_us.value));
        if p.program_pages.is_none() {
            return DieArray::plain(dies, SuspendLimit { program_ns, erase_ns });
        }
        let suspensions = p.suspensions.as_ref().map_or(u32::MAX, |limit| limit.value as u32);
        let planes = or_default(&p.planes_per_die, 1.0) as u64;
        DieArray::ordered(dies, planes, SuspendRules { program_ns, erase_ns, suspensions })
    }

    /// The controller takes a command.
    fn start(&mut self, request: ModelRequest, now_ns: u64) {
        let (gap_ns, command_ns) = match request.operation {
            ModelOperation::Read => (self.read_gap_ns, self.command_read_ns),
            ModelOperation::Write => (self.write_gap_ns, self.command_write_ns),
            ModelOperation::Flush | ModelOperation::Discard => (self.write_gap_ns, self.command_write_ns),
        };
        let (start_ns, _) = self.controller.take(now_ns, gap_ns);
        self.push(start_ns + command_ns, FlashEvent::Arrive(FlashCommand::from_request(request)));
    }

    /// Answers a request, and lets the next one into its place.
    fn finish(&mut self, id: RequestId, at_ns: u64, finished: &mut Vec<FinishedRequest>) {
        finished.push(FinishedRequest { id, at: ModelTime::from_ns(at_ns) });
        if let Some((next, start_ns)) = self.slots.as_mut().and_then(|slots| slots.release(at_ns)) {
            self.start(next, start_ns);
        }
    }

    fn push(&mut self, at_ns: u64, event: FlashEvent) {
        self.next_event += 1;
        self.events.push(Reverse((at_ns, self.next_event, event)));
    }

    fn step(&mut self, at_ns: u64, event: FlashEvent, finished: &mut Vec<FinishedRequest>) {
        match event {
            FlashEvent::Arrive(command) => self.arrive(command.request(), at_ns),
            FlashEvent::PageRead(page) => {
                let free_ns = &mut self.channel_free_ns[page.channel as usize];
                *free_ns = at_ns.max(*free_ns) + transfer_ns(page.bytes, self.channel_mb_s);
                let moved_ns = *free_ns;
                self.push(moved_ns, FlashEvent::PageMoved(page));
            }
            FlashEvent::PageMoved(page) => {
                let span_ns = transfer_ns(page.bytes, self.interface_read_mb_s);
                let (_, sent_ns) = self.interface_read.take(at_ns, span_ns);
                if self.half_duplex {
                    self.interface_write = self.interface_read;
                }
                self.push(sent_ns, FlashEvent::PageSent(page.id));
            }
            FlashEvent::PageSent(id) => {
                if let Some(pages) = self.reading.get_mut(&id) {
                    *pages -= 1;
                    if *pages == 0 {
                        self.reading.remove(&id);
                        self.finish(id, at_ns, finished);
                    }
                }
            }
            FlashEvent::Received(command) => {
                let request = command.request();
                let work = self.map(request.offset_bytes, request.length_bytes);
                if self.waiting_writes.is_empty() && self.has_room_for(request.length_bytes) {
                    self.accept(request, work, at_ns);
                } else {
                    self.waiting_writes.push_back((request, work));
                    if !self.draining {
                        self.drain(at_ns);
                    }
                }
            }
            FlashEvent::Drained(bytes) => self.drained(bytes, at_ns),
            FlashEvent::Finish(id) => self.finish(id, at_ns, finished),
        }
    }

    fn arrive(&mut self, request: ModelRequest, now_ns: u64) {
        match request.operation {
            ModelOperation::Read => self.read(request, now_ns),
            ModelOperation::Write => {
                let span_ns = transfer_ns(request.length_bytes, self.interface_write_mb_s);
                let (_, received_ns) = self.interface_write.take(now_ns, span_ns);
                if self.half_duplex {
                    self.interface_read = self.interface_write;
                }
                self.push(received_ns, FlashEvent::Received(FlashCommand::from_request(request)));
            }
            ModelOperation::Flush => {
                if self.power_loss_protection || self.drained == self.accepted {
                    // A backdated flush waits for the pages that were drained meanwhile.
                    let waited = !self.power_loss_protection && now_ns < self.drained_ns;
                    let over_ns =
                        if waited { self.drained_ns + self.page_program_ns } else { now_ns + self.flush_ns };
                    self.push(over_ns, FlashEvent::Finish(request.id));
                } else {
                    self.waiting_drains.push((request.id, self.accepted));
                    if !self.draining {
                        self.drain(now_ns);
                    }
                }
            }
            ModelOperation::Discard => {
                let blocks =
                    Self::whole_blocks(request.offset_bytes, request.offset_bytes + request.length_bytes);
                // Over what is buffered, not over the range: that may be the whole device.
                self.buffered_blocks.retain(|block, _| !blocks.contains(block));
                if let Some(translation) = &mut self.translation {
                    translation.discard(request.offset_bytes, request.length_bytes);
                }
                self.push(now_ns, FlashEvent::Finish(request.id));
            }
        }
    }

    fn read(&mut self, request: ModelRequest, now_ns: u64) {
        let (first, end) = (request.offset_bytes, request.offset_bytes + request.length_bytes);
        let mut position = first;
        let mut pages = 0;
        while position < end {
            let index = position / self.page_bytes;
            let page_end = end.min((index + 1) * self.page_bytes);
            let channel = index % self.channels;
            let page = PageTransfer { id: request.id, channel, bytes: page_end - position };
            pages += 1;
            if self.is_buffered(position, page_end) {
                self.push(now_ns, FlashEvent::PageMoved(page));
            } else {
                let die = index / self.channels % self.dies_per_channel * self.channels + channel;
                let row = index / self.dies.count();
                let read_ns = self.page_read_ns[page_kind(index, self.seed)];
                let register_ns = self.dies.read(die, row, now_ns, read_ns);
                self.push(register_ns, FlashEvent::PageRead(page));
            }
            position = page_end;
        }
        self.reading.insert(request.id, pages);
    }
}

/// What the buffer of a device holds whose capacity is this share of the medium's. How long a turn of copies keeps
/// writes waiting depends on the buffer before it: a smaller device keeps both.
pub(crate) fn buffer_limit_bytes(parameters: &FlashParameters, share: f64) -> u64 {
    let full_bytes = parameters.write_buffer_bytes.value;
    let turn_bytes = or_default(&parameters.copy_turn_bytes, 0.0);
    scaled_buffer_bytes(full_bytes, share).max(full_bytes.min(turn_bytes) as u64)
}

/// An optional parameter's value.
fn or_default(quantity: &Option<SourcedQuantity>, default: f64) -> f64 {
    quantity.as_ref().map_or(default, |quantity| quantity.value)
}

/// Fast, middle or slow: cells hold several bits, and their pages take differently long to tell apart.
fn page_kind(index: u64, seed: u64) -> usize {
    let mixed = (index ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // The high bits of a product are the well-mixed ones.
    (mixed >> 40) as usize % 3
}

impl MediumModel for FlashModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The buffer, unless it is protected.
    fn unflushed(&self) -> Vec<(u64, u64)> {
        if self.power_loss_protection {
            return Vec::new();
        }
        self.backlog.iter().map(|write| (write.first_byte, write.first_byte + write.length_bytes)).collect()
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        if self.slots.as_mut().is_none_or(|slots| slots.take(request, now.as_ns())) {
            self.start(request, now.as_ns());
        }
    }

    /// Dies, channels, controller and interface each know until when they are busy.
    fn takes_late(&self) -> bool {
        true
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.events.peek().map(|Reverse((at_ns, _, _))| ModelTime::from_ns(*at_ns))
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(Reverse((at_ns, _, event))) = self.events.peek().copied() {
            if at_ns > now.as_ns() {
                break;
            }
            self.events.pop();
            self.step(at_ns, event, finished);
        }
    }

    fn end_fast_forward(&mut self, now: ModelTime) {
        if let Some(slc) = &mut self.slc {
            slc.restart(now.as_ns());
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        match request.operation {
            // As if the buffer had drained at once; the mapping is what stays.
            ModelOperation::Write => {
                let work = self.map(request.offset_bytes, request.length_bytes);
                self.erases_for(work.bytes());
            }
            ModelOperation::Discard => {
                if let Some(translation) = &mut self.translation {
                    translation.discard(request.offset_bytes, request.length_bytes);
                }
            }
            ModelOperation::Read | ModelOperation::Flush => {}
        }
    }

    fn wear(&self) -> Option<FlashWear> {
        let folded_bytes = self.slc.as_ref().map_or(0.0, |slc| slc.folded_bytes);
        Some(FlashWear {
            host_write_bytes: self.host_write_bytes as u64,
            programmed_bytes: (self.programmed_bytes + folded_bytes) as u64,
            erased_blocks: self.erased_blocks,
            write_amplification: None,
            rated_write_bytes: Some(self.rated_write_bytes).filter(|bytes| *bytes > 0),
            life_days: None,
        })
    }
}
