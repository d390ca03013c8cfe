//! Flash devices: dies behind channels behind a controller behind an interface, and a write buffer.
//!
//! A read is split by pages. Each page is read from its die into a register, crosses its channel, then the
//! interface; each of these serves one at a time, in the order in which they come to it. Logical pages are
//! striped over channels first, then over dies.
//!
//! A write completes as it enters the write buffer; when that is full, it waits for room. The buffer drains
//! at a steady rate, page by page over all dies in turn. A page being programmed delays the reads of its die
//! by the time to suspend it at most.
//!
//! **Steady state.** What a flash translation layer costs is one number: a write that does not go on where
//! an earlier one ended drains `random_write_amplification` times its bytes, in units of 4 KiB. So a long
//! run of random writes comes to the device's steady-state figure, sequential streams to its sequential
//! one, and a mixture in between. Garbage collection itself, and with it the way into the steady state and
//! the pauses there, is not modelled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::catalogue::FlashParameters;
use crate::media::{scaled_buffer_bytes, transfer_ns, us_to_ns};
use crate::medium::{Finished, MediumModel, ModelRequest, Operation, RequestId};
use crate::time::Time;

/// The unit of mapping: a smaller random write costs as much.
const MAPPING_BYTES: u64 = 4096;
/// Sequential streams that are told apart.
const STREAMS: usize = 16;
/// A write this near to the end of a stream, at the most, belongs to it: requests of one stream overtake one
/// another. A small device takes the 2048th of its capacity, lest random writes look sequential.
const STREAM_WINDOW_BYTES: u64 = 16 << 20;
/// So many requests may overtake one of their stream. In bytes it is what lies between them: a window as
/// wide as for large requests would take small random writes within a few files for streams.
const STREAM_WINDOW_REQUESTS: u64 = 32;

/// A flash device in virtual time.
#[derive(Debug)]
pub struct FlashModel {
    capacity_bytes: u64,
    seed: u64,
    channels: u64,
    dies_per_channel: u64,
    page_bytes: u64,
    /// By the kind of page: fast, mean, slow.
    page_read_ns: [u64; 3],
    page_program_ns: u64,
    program_suspend_ns: u64,
    channel_mb_s: f64,
    interface_read_mb_s: f64,
    interface_write_mb_s: f64,
    half_duplex: bool,
    command_read_ns: u64,
    command_write_ns: u64,
    read_gap_ns: u64,
    write_gap_ns: u64,
    program_mb_s: f64,
    random_write_amplification: f64,
    buffer_limit_bytes: u64,
    flush_ns: u64,
    power_loss_protection: bool,

    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Orders events of the same instant as they were made.
    next_event: u64,
    controller_free_ns: u64,
    dies: Vec<Die>,
    channel_free_ns: Vec<u64>,
    interface_read_free_ns: u64,
    interface_write_free_ns: u64,
    /// Pages still to come, for each read under way.
    reading: HashMap<RequestId, u64>,
    streams: VecDeque<u64>,
    stream_window_bytes: u64,

    buffered_bytes: u64,
    backlog: VecDeque<Buffered>,
    /// The write that last filled each 4 KiB block which is in the buffer.
    buffered_blocks: HashMap<u64, u64>,
    waiting_writes: VecDeque<(ModelRequest, f64)>,
    draining: bool,
    next_die: u64,
    accepted: u64,
    drained: u64,
    /// Flushes and FUA writes without power-loss protection: finished when write number `.1` is programmed.
    waiting_drains: Vec<(RequestId, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Die {
    read_free_ns: u64,
    program_ends_ns: u64,
}

/// A write in the buffer.
#[derive(Clone, Copy, Debug)]
struct Buffered {
    number: u64,
    first_byte: u64,
    length_bytes: u64,
    /// Bytes still to be programmed, amplified.
    work_bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The controller has taken the command.
    Arrive(Command),
    /// A page lies in its die's register.
    PageRead(Page),
    /// A page, or buffered data, is ready for the interface.
    PageMoved(Page),
    PageSent(RequestId),
    /// A write's data has come over the interface.
    Received(Command),
    /// So much of the buffer's backlog has been given to the dies.
    Drained(u64),
    Finish(RequestId),
}

/// `ModelRequest` with an order, which the heap of events wants. `operation` is told by the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Command {
    id: RequestId,
    kind: u8,
    offset_bytes: u64,
    length_bytes: u64,
    fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Page {
    id: RequestId,
    channel: u64,
    bytes: u64,
}

impl Command {
    fn of(request: ModelRequest) -> Command {
        let kind = match request.operation {
            Operation::Read => 0,
            Operation::Write => 1,
            Operation::Flush => 2,
            Operation::Discard => 3,
        };
        let ModelRequest { id, offset_bytes, length_bytes, fua, .. } = request;
        Command { id, kind, offset_bytes, length_bytes, fua }
    }

    fn request(self) -> ModelRequest {
        let operation = match self.kind {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            _ => Operation::Discard,
        };
        let Command { id, offset_bytes, length_bytes, fua, .. } = self;
        ModelRequest { id, operation, offset_bytes, length_bytes, fua }
    }
}

impl FlashModel {
    /// See [`crate::catalogue::Medium::model`], which calls this.
    pub fn new(parameters: &FlashParameters, capacity_bytes: u64, scale: f64, seed: u64) -> FlashModel {
        let p = parameters;
        let (channels, dies_per_channel) = (p.channels.value as u64, p.dies_per_channel.value as u64);
        let read_ns = |share: f64| us_to_ns(p.page_read_us.value * share);
        let spread = p.page_read_spread.value;
        FlashModel {
            capacity_bytes,
            seed,
            channels,
            dies_per_channel,
            page_bytes: p.page_bytes.value as u64,
            page_read_ns: [read_ns(1.0 - spread), read_ns(1.0), read_ns(1.0 + spread)],
            page_program_ns: us_to_ns(p.page_program_us.value),
            program_suspend_ns: us_to_ns(p.program_suspend_us.value),
            channel_mb_s: p.channel_mb_s.value,
            interface_read_mb_s: p.interface_read_mb_s.value,
            interface_write_mb_s: p.interface_write_mb_s.value,
            half_duplex: p.half_duplex.value,
            command_read_ns: us_to_ns(p.command_read_us.value),
            command_write_ns: us_to_ns(p.command_write_us.value),
            read_gap_ns: (1e9 / p.read_iops.value).round() as u64,
            write_gap_ns: (1e9 / p.write_iops.value).round() as u64,
            program_mb_s: p.program_mb_s.value,
            random_write_amplification: p.random_write_amplification.value,
            buffer_limit_bytes: scaled_buffer_bytes(p.write_buffer_bytes.value, scale),
            flush_ns: us_to_ns(p.flush_us.value),
            power_loss_protection: p.power_loss_protection.value,
            events: BinaryHeap::new(),
            next_event: 0,
            controller_free_ns: 0,
            dies: vec![Die::default(); (channels * dies_per_channel) as usize],
            channel_free_ns: vec![0; channels as usize],
            interface_read_free_ns: 0,
            interface_write_free_ns: 0,
            reading: HashMap::new(),
            streams: VecDeque::with_capacity(STREAMS),
            stream_window_bytes: STREAM_WINDOW_BYTES.min(capacity_bytes / 2048),
            buffered_bytes: 0,
            backlog: VecDeque::new(),
            buffered_blocks: HashMap::new(),
            waiting_writes: VecDeque::new(),
            draining: false,
            next_die: 0,
            accepted: 0,
            drained: 0,
            waiting_drains: Vec::new(),
        }
    }

    /// The ranges of bytes that are acknowledged and that a power cut would take: the buffer, unless it is
    /// protected.
    pub fn unflushed(&self) -> Vec<(u64, u64)> {
        if self.power_loss_protection {
            return Vec::new();
        }
        self.backlog.iter().map(|write| (write.first_byte, write.first_byte + write.length_bytes)).collect()
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((at_ns, self.next_event, event)));
    }

    /// What a write at this place costs to program, in bytes, and where its stream ends from now on.
    fn work_bytes(&mut self, first: u64, length: u64) -> f64 {
        let end = first + length;
        let window = self.stream_window_bytes.min(length.saturating_mul(STREAM_WINDOW_REQUESTS));
        match self.streams.iter().position(|stream| stream.abs_diff(first) <= window) {
            Some(index) => {
                let stream = self.streams.remove(index).unwrap_or(end);
                // One that fell behind in its stream doesn't draw it back.
                self.streams.push_front(stream.max(end));
                length as f64
            }
            None => {
                self.streams.truncate(STREAMS - 1);
                self.streams.push_front(end);
                length.next_multiple_of(MAPPING_BYTES) as f64 * self.random_write_amplification
            }
        }
    }

    /// Whether the buffer has all of a range.
    fn is_buffered(&self, first: u64, end: u64) -> bool {
        !self.buffered_blocks.is_empty()
            && (first / MAPPING_BYTES..end.div_ceil(MAPPING_BYTES))
                .all(|block| self.buffered_blocks.contains_key(&block))
    }

    /// The 4 KiB blocks that a range fills entirely.
    fn whole_blocks(first: u64, end: u64) -> std::ops::Range<u64> {
        first.div_ceil(MAPPING_BYTES)..(end / MAPPING_BYTES).max(first.div_ceil(MAPPING_BYTES))
    }

    fn step(&mut self, at_ns: u64, event: Event, finished: &mut Vec<Finished>) {
        match event {
            Event::Arrive(command) => self.arrive(command.request(), at_ns),
            Event::PageRead(page) => {
                let free_ns = &mut self.channel_free_ns[page.channel as usize];
                *free_ns = at_ns.max(*free_ns) + transfer_ns(page.bytes, self.channel_mb_s);
                let moved_ns = *free_ns;
                self.push(moved_ns, Event::PageMoved(page));
            }
            Event::PageMoved(page) => {
                let sent_ns = at_ns.max(self.interface_read_free_ns)
                    + transfer_ns(page.bytes, self.interface_read_mb_s);
                self.interface_read_free_ns = sent_ns;
                if self.half_duplex {
                    self.interface_write_free_ns = sent_ns;
                }
                self.push(sent_ns, Event::PageSent(page.id));
            }
            Event::PageSent(id) => {
                if let Some(pages) = self.reading.get_mut(&id) {
                    *pages -= 1;
                    if *pages == 0 {
                        self.reading.remove(&id);
                        finished.push(Finished { id, at: Time::from_ns(at_ns) });
                    }
                }
            }
            Event::Received(command) => {
                let request = command.request();
                let work = self.work_bytes(request.offset_bytes, request.length_bytes);
                if self.waiting_writes.is_empty() && self.has_room_for(request.length_bytes) {
                    self.accept(request, work, at_ns);
                } else {
                    self.waiting_writes.push_back((request, work));
                }
            }
            Event::Drained(bytes) => self.drained(bytes, at_ns),
            Event::Finish(id) => finished.push(Finished { id, at: Time::from_ns(at_ns) }),
        }
    }

    fn arrive(&mut self, request: ModelRequest, now_ns: u64) {
        match request.operation {
            Operation::Read => self.read(request, now_ns),
            Operation::Write => {
                let received_ns = now_ns.max(self.interface_write_free_ns)
                    + transfer_ns(request.length_bytes, self.interface_write_mb_s);
                self.interface_write_free_ns = received_ns;
                if self.half_duplex {
                    self.interface_read_free_ns = received_ns;
                }
                self.push(received_ns, Event::Received(Command::of(request)));
            }
            Operation::Flush => {
                if self.power_loss_protection || self.drained == self.accepted {
                    self.push(now_ns + self.flush_ns, Event::Finish(request.id));
                } else {
                    self.waiting_drains.push((request.id, self.accepted));
                }
            }
            Operation::Discard => {
                let blocks =
                    Self::whole_blocks(request.offset_bytes, request.offset_bytes + request.length_bytes);
                // Over what is buffered, not over the range: that may be the whole device.
                self.buffered_blocks.retain(|block, _| !blocks.contains(block));
                self.push(now_ns, Event::Finish(request.id));
            }
        }
    }

    fn read(&mut self, request: ModelRequest, now_ns: u64) {
        let (first, end) = (request.offset_bytes, request.offset_bytes + request.length_bytes);
        let mut at = first;
        let mut pages = 0;
        while at < end {
            let index = at / self.page_bytes;
            let page_end = end.min((index + 1) * self.page_bytes);
            let channel = index % self.channels;
            let page = Page { id: request.id, channel, bytes: page_end - at };
            pages += 1;
            if self.is_buffered(at, page_end) {
                self.push(now_ns, Event::PageMoved(page));
            } else {
                let die_index = index / self.channels % self.dies_per_channel * self.channels + channel;
                let read_ns = self.page_read_ns[page_kind(index, self.seed)];
                let die = &mut self.dies[die_index as usize];
                let mut start_ns = now_ns.max(die.read_free_ns);
                if die.program_ends_ns > start_ns {
                    start_ns += (die.program_ends_ns - start_ns).min(self.program_suspend_ns);
                    // The program goes on after the read.
                    die.program_ends_ns = die.program_ends_ns.max(start_ns) + read_ns;
                }
                die.read_free_ns = start_ns + read_ns;
                let register_ns = die.read_free_ns;
                self.push(register_ns, Event::PageRead(page));
            }
            at = page_end;
        }
        self.reading.insert(request.id, pages);
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        // A write larger than the whole buffer goes through it when it is empty.
        self.buffered_bytes == 0 || self.buffered_bytes + bytes <= self.buffer_limit_bytes
    }

    fn accept(&mut self, request: ModelRequest, work_bytes: f64, now_ns: u64) {
        self.accepted += 1;
        let number = self.accepted;
        let (first_byte, length_bytes) = (request.offset_bytes, request.length_bytes);
        self.buffered_bytes += length_bytes;
        self.backlog.push_back(Buffered { number, first_byte, length_bytes, work_bytes });
        for block in Self::whole_blocks(first_byte, first_byte + length_bytes) {
            self.buffered_blocks.insert(block, number);
        }
        if request.fua && !self.power_loss_protection {
            self.waiting_drains.push((request.id, number));
        } else {
            self.push(now_ns, Event::Finish(request.id));
        }
        if !self.draining {
            self.drain(now_ns);
        }
    }

    /// Gives the next page's worth of the backlog to a die.
    fn drain(&mut self, now_ns: u64) {
        let mut bytes = 0.0;
        for write in &self.backlog {
            bytes += write.work_bytes;
            if bytes >= self.page_bytes as f64 {
                break;
            }
        }
        let bytes = (bytes.ceil() as u64).min(self.page_bytes);
        self.draining = bytes > 0;
        if bytes == 0 {
            return;
        }
        let die_index = self.next_die as usize;
        let channel = die_index % self.channels as usize;
        self.next_die = (self.next_die + 1) % self.dies.len() as u64;
        // The data is in the register before the die begins; reads share the channel with it.
        let moved_ns = now_ns.max(self.channel_free_ns[channel]) + transfer_ns(bytes, self.channel_mb_s);
        self.channel_free_ns[channel] = moved_ns;
        let die = &mut self.dies[die_index];
        die.program_ends_ns = die.program_ends_ns.max(moved_ns) + self.page_program_ns;
        self.push(now_ns + transfer_ns(bytes, self.program_mb_s).max(1), Event::Drained(bytes));
    }

    fn drained(&mut self, bytes: u64, now_ns: u64) {
        let mut left = bytes as f64;
        while let Some(write) = self.backlog.front_mut() {
            // Amplified work has a fraction; the page that was rounded up takes it along.
            if write.work_bytes > left {
                write.work_bytes -= left;
                break;
            }
            left -= write.work_bytes;
            let Buffered { number, first_byte, length_bytes, .. } = *write;
            self.backlog.pop_front();
            self.buffered_bytes -= length_bytes;
            self.drained = number;
            for block in Self::whole_blocks(first_byte, first_byte + length_bytes) {
                if self.buffered_blocks.get(&block) == Some(&number) {
                    self.buffered_blocks.remove(&block);
                }
            }
        }
        while let Some((request, work)) = self.waiting_writes.front().copied() {
            if !self.has_room_for(request.length_bytes) {
                break;
            }
            self.waiting_writes.pop_front();
            // `draining` is still set: accepting starts no second drain.
            self.accept(request, work, now_ns);
        }
        let programmed_ns = now_ns + self.page_program_ns;
        for (id, number) in std::mem::take(&mut self.waiting_drains) {
            if number <= self.drained {
                self.push(programmed_ns, Event::Finish(id));
            } else {
                self.waiting_drains.push((id, number));
            }
        }
        self.drain(now_ns);
    }
}

/// Fast, mean or slow: cells hold several bits, and their pages take differently long to tell apart.
fn page_kind(index: u64, seed: u64) -> usize {
    let mixed = (index ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as usize % 3
}

impl MediumModel for FlashModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn submit(&mut self, request: ModelRequest, now: Time) {
        let (gap_ns, command_ns) = match request.operation {
            Operation::Read => (self.read_gap_ns, self.command_read_ns),
            Operation::Write => (self.write_gap_ns, self.command_write_ns),
            Operation::Flush | Operation::Discard => (self.write_gap_ns, self.command_write_ns),
        };
        let start_ns = now.as_ns().max(self.controller_free_ns);
        self.controller_free_ns = start_ns + gap_ns;
        self.push(start_ns + command_ns, Event::Arrive(Command::of(request)));
    }

    fn next_completion(&self) -> Option<Time> {
        self.events.peek().map(|Reverse((at_ns, _, _))| Time::from_ns(*at_ns))
    }

    fn complete(&mut self, now: Time, finished: &mut Vec<Finished>) {
        while let Some(Reverse((at_ns, _, event))) = self.events.peek().copied() {
            if at_ns > now.as_ns() {
                break;
            }
            self.events.pop();
            self.step(at_ns, event, finished);
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        match request.operation {
            // As if the buffer had drained at once; the streams are what stays.
            Operation::Write => {
                self.work_bytes(request.offset_bytes, request.length_bytes);
            }
            Operation::Read | Operation::Flush | Operation::Discard => {}
        }
    }
}
