//! The next operations of one thread, drawn several at a time: kinds, keys, and everything else that an operation needs
//! except values.
//!
//! Each step processes all of them before the next one begins. One operation's draws are a chain of steps. A processor
//! can only work on several at once if the chains of several operations are side by side.

use std::sync::Arc;

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::client::FieldSelection;
use crate::draw::distribution::KeyChooser;
use crate::draw::keys::RecordKeys;
use crate::draw::values::LengthChooser;
use crate::mix::{MixKind, OperationChooser, OperationKind, OperationMix};
use crate::run::series::KINDS;
use crate::run::simd_kernels;
use crate::workload::CoreWorkload;

/// A drawn operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnOperation {
    pub kind: OperationKind,
    /// The fields to read.
    pub fields: FieldSelection,
    /// The fields to write; `None` if there are none.
    pub written: Option<FieldSelection>,
    pub scan_length: u32,
    /// A record that is added: its key is created when it is sent.
    pub is_added: bool,
    /// Nothing needs to be created before it is sent or between its parts, and nothing is repeated after it.
    pub is_prompt: bool,
}

impl DrawnOperation {
    /// An operation on all fields, where fields are read or written.
    pub(crate) fn whole(kind: OperationKind, is_added: bool) -> Self {
        use OperationKind::{Insert, ReadModifyWrite, Update};
        let written = matches!(kind, Insert | Update | ReadModifyWrite).then_some(FieldSelection::All);
        DrawnOperation {
            kind,
            fields: FieldSelection::All,
            written,
            scan_length: 0,
            is_added,
            is_prompt: false,
        }
    }
}

/// Separate random numbers for each use, so that draws do not depend on how many operations are drawn at once.
#[derive(Debug)]
struct RandomStreams {
    kinds: Pcg64Mcg,
    keys: Pcg64Mcg,
    redraws: Pcg64Mcg,
    details: Pcg64Mcg,
}

/// Draws operations and keeps those not taken yet.
#[derive(Debug)]
pub(crate) struct OperationDraws {
    workload: Arc<CoreWorkload>,
    streams: RandomStreams,
    /// `None` where all operations are of one kind.
    kinds: Option<OperationChooser>,
    only: OperationKind,
    keys: KeyChooser,
    scan_lengths: LengthChooser,
    /// The common properties of operations of each kind.
    templates: [DrawnOperation; KINDS],
    /// No record is added.
    adds_none: bool,
    /// More is drawn than kind and key: a field, or the length of a scan.
    has_details: bool,
    drawn: Vec<DrawnOperation>,
    /// The names of their records, in the same places.
    names: RecordKeys,
    numbers: Vec<u64>,
    /// The place of the next operation.
    next: usize,
}

impl OperationDraws {
    /// Draws up to `most` at once. Names are created quickly for records up to the number `highest`.
    pub(crate) fn new(
        workload: &Arc<CoreWorkload>,
        mix: &OperationMix,
        keys: KeyChooser,
        highest: u64,
        most: usize,
        rng: &mut Pcg64Mcg,
    ) -> Self {
        let (kinds, only) = match mix.kind() {
            MixKind::Transactions(proportions) => (Some(proportions.chooser()), OperationKind::Read),
            MixKind::Load => (None, OperationKind::Insert),
            MixKind::Delete => (None, OperationKind::Delete),
        };
        let mut stream = || Pcg64Mcg::from_rng(rng);
        let streams = RandomStreams { kinds: stream(), keys: stream(), redraws: stream(), details: stream() };
        // A load knows the numbers of its records in advance.
        let adds = |kind| kind == OperationKind::Insert && !mix.visits_every_record();
        let mut draws = OperationDraws {
            streams,
            kinds,
            only,
            keys,
            scan_lengths: workload.scan_lengths_for(mix),
            templates: OperationKind::ALL.map(|kind| DrawnOperation::whole(kind, adds(kind))),
            adds_none: mix.share(OperationKind::Insert) == 0.0,
            has_details: true,
            drawn: Vec::with_capacity(most),
            names: RecordKeys::new(workload.key_naming, highest, most),
            numbers: vec![0; most],
            next: 0,
            workload: Arc::clone(workload),
        };
        draws.look_for_details(mix, true);
        draws
    }

    /// Determines whether anything but kinds and keys must be drawn.
    pub(crate) fn look_for_details(&mut self, mix: &OperationMix, makes_values: bool) {
        use OperationKind::{Read, ReadModifyWrite, Scan, Update};
        let any = |kinds: &[OperationKind]| kinds.iter().any(|&kind| mix.share(kind) > 0.0);
        let reads_one = any(&[Read, Scan, ReadModifyWrite]) && !self.workload.read_all_fields;
        let writes_one = any(&[Update, ReadModifyWrite]) && !self.workload.write_all_fields && makes_values;
        self.has_details = reads_one || writes_one || mix.scans();
        for drawn in &mut self.templates {
            let makes_nothing = drawn.written.is_none() || !makes_values;
            drawn.is_prompt = makes_nothing && !matches!(drawn.kind, OperationKind::Insert | ReadModifyWrite);
        }
    }

    /// How many were drawn but not taken.
    pub(crate) fn left(&self) -> usize {
        self.drawn.len() - self.next
    }

    /// The next operation and its place.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(usize, DrawnOperation)> {
        let place = self.next;
        let drawn = *self.drawn.get(place)?;
        self.next += 1;
        Some((place, drawn))
    }

    /// Whether the next operation has been drawn and is [`DrawnOperation::is_prompt`].
    #[inline]
    pub(crate) fn has_prompt(&self) -> bool {
        self.drawn.get(self.next).is_some_and(|drawn| drawn.is_prompt)
    }

    /// [`Self::take`] if it [`has_prompt`](Self::has_prompt).
    #[inline]
    pub(crate) fn take_prompt(&mut self) -> Option<(usize, DrawnOperation)> {
        if self.has_prompt() { self.take() } else { None }
    }

    /// The name of the record for the operation in this place.
    #[inline]
    pub(crate) fn name(&self, place: usize) -> &[u8] {
        self.names.get(place)
    }

    /// Names the record for the operation in this place by its number.
    pub(crate) fn set_number(&mut self, place: usize, number: u64) {
        self.names.write(place, number);
    }

    /// The kind of an operation that is drawn separately.
    pub(crate) fn kind(&mut self) -> OperationKind {
        match &self.kinds {
            Some(kinds) => kinds.choose(&mut self.streams.kinds),
            None => self.only,
        }
    }

    /// Replaces the earlier operations by `count` new ones, on records up to `last_acknowledged`, or on the record
    /// `visited`.
    pub(crate) fn refill(&mut self, count: usize, visited: Option<u64>, last_acknowledged: u64) {
        simd_kernels::widest(
            #[inline(always)]
            || self.draw(count, visited, last_acknowledged),
        );
        if self.has_details {
            self.draw_details();
        }
    }

    #[inline(always)]
    fn draw(&mut self, count: usize, visited: Option<u64>, last_acknowledged: u64) {
        self.next = 0;
        self.drawn.clear();
        let RandomStreams { kinds: kind_bits, keys, redraws, .. } = &mut self.streams;
        if let Some(kinds) = &self.kinds
            && self.adds_none
            && self.keys.takes_bits()
        {
            // Both at once, since every random number depends on the one before it.
            let numbers = &mut self.numbers[..count];
            self.drawn.extend(numbers.iter_mut().map(|bits| {
                *bits = keys.next_u64();
                self.templates[kinds.kind_of(kind_bits.next_u64()) as usize]
            }));
            self.keys.replace_all(redraws, last_acknowledged, numbers);
            self.names.write_all(numbers);
            return;
        }
        match &self.kinds {
            None => self.drawn.resize(count, self.templates[self.only as usize]),
            Some(kinds) => {
                let kinds = (0..count).map(|_| kinds.choose(kind_bits));
                self.drawn.extend(kinds.map(|kind| self.templates[kind as usize]));
            }
        }
        let named = self.drawn.iter().filter(|drawn| !drawn.is_added).count();
        let numbers = &mut self.numbers[..named];
        match visited {
            Some(number) => numbers.fill(number),
            None => self.keys.fill(keys, redraws, last_acknowledged, numbers),
        }
        if named == count {
            self.names.write_all(numbers);
        } else {
            let places = self.drawn.iter().enumerate().filter(|(_, drawn)| !drawn.is_added);
            for ((place, _), &mut number) in places.zip(numbers) {
                self.names.write(place, number);
            }
        }
    }

    fn draw_details(&mut self) {
        use OperationKind::{Read, ReadModifyWrite, Scan, Update};
        let CoreWorkload { field_count, read_all_fields, write_all_fields, .. } = *self.workload;
        let rng = &mut self.streams.details;
        let fields = |all: bool, rng: &mut Pcg64Mcg| {
            if all { FieldSelection::All } else { FieldSelection::One(rng.random_range(0..field_count)) }
        };
        for drawn in &mut self.drawn {
            if matches!(drawn.kind, Read | Scan | ReadModifyWrite) {
                drawn.fields = fields(read_all_fields, rng);
            }
            if drawn.kind == Scan {
                drawn.scan_length = self.scan_lengths.next(rng);
            }
            if matches!(drawn.kind, Update | ReadModifyWrite) {
                drawn.written = Some(fields(write_all_fields, rng));
            }
        }
    }
}
