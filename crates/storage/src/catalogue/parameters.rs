//! The parameters of the models: what a catalogue file states in `[model]`, with the bounds of sense.

use serde::{Deserialize, Serialize};

use super::curves::{SourcedCurve, SourcedDistribution};
use super::quantity::{ParameterEntry, SourcedProperty, SourcedQuantity};
use super::table::{NumberRange, TableReader};

/// Values that a study may set a parameter to, where it names the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterForm {
    /// A number; a distribution is then always that.
    Number,
    Property,
    /// Nothing: it is more than one value, which stands in a file of the medium's own.
    Table,
}

/// Kinds of parameters besides a required number: something optional, a distribution, a curve.
trait ParameterField: Sized {
    const FORM: ParameterForm;
    fn read(table: &mut TableReader<'_>, key: &'static str, low: f64, high: f64) -> Option<Self>;
    fn entry(&self, name: &'static str) -> Option<ParameterEntry<'_>>;
    fn problem(&self, low: f64, high: f64) -> Option<String>;
}

impl ParameterField for SourcedQuantity {
    const FORM: ParameterForm = ParameterForm::Number;

    fn read(table: &mut TableReader<'_>, key: &'static str, low: f64, high: f64) -> Option<Self> {
        table.quantity(NumberRange::All, key, low, high)
    }

    fn entry(&self, name: &'static str) -> Option<ParameterEntry<'_>> {
        let value = super::plain_number(self.value);
        Some(ParameterEntry { name, value, source: &self.source, estimate: self.estimate })
    }

    fn problem(&self, low: f64, high: f64) -> Option<String> {
        let bounds = (super::plain_number(low), super::plain_number(high));
        (!(low..=high).contains(&self.value))
            .then(|| format!("is {}, outside {} to {}", self.value, bounds.0, bounds.1))
    }
}

impl ParameterField for SourcedDistribution {
    const FORM: ParameterForm = ParameterForm::Number;

    fn read(table: &mut TableReader<'_>, key: &'static str, low: f64, high: f64) -> Option<Self> {
        table.distribution(key, low, high)
    }

    fn entry(&self, name: &'static str) -> Option<ParameterEntry<'_>> {
        Some(ParameterEntry { name, value: self.text(), source: &self.source, estimate: self.estimate })
    }

    fn problem(&self, low: f64, high: f64) -> Option<String> {
        SourcedDistribution::problem(self, low, high)
    }
}

impl ParameterField for SourcedCurve {
    const FORM: ParameterForm = ParameterForm::Table;

    fn read(table: &mut TableReader<'_>, key: &'static str, low: f64, high: f64) -> Option<Self> {
        table.curve(key, low, high)
    }

    fn entry(&self, name: &'static str) -> Option<ParameterEntry<'_>> {
        Some(ParameterEntry { name, value: self.text(), source: &self.source, estimate: self.estimate })
    }

    fn problem(&self, low: f64, high: f64) -> Option<String> {
        SourcedCurve::problem(self, low, high)
    }
}

impl<T: ParameterField> ParameterField for Option<T> {
    const FORM: ParameterForm = T::FORM;

    fn read(table: &mut TableReader<'_>, key: &'static str, low: f64, high: f64) -> Option<Self> {
        let is_there = table.has(key) || table.is_derived(key);
        if is_there { T::read(table, key, low, high).map(Some) } else { Some(None) }
    }

    fn entry(&self, name: &'static str) -> Option<ParameterEntry<'_>> {
        self.as_ref()?.entry(name)
    }

    fn problem(&self, low: f64, high: f64) -> Option<String> {
        self.as_ref()?.problem(low, high)
    }
}

/// `numbers` (all, or whole ones only) and `properties` must be there. Parameters in `others` have their own types, and
/// may be left out where that is an `Option`.
macro_rules! parameters {
    (
        $(#[$doc:meta])* $name:ident
        numbers { $($(#[$number_doc:meta])* $number:ident: $numbers:ident in $low:literal to $high:literal,)* }
        properties { $($(#[$property_doc:meta])* $property:ident,)* }
        $(others {
            $($(#[$other_doc:meta])* $other:ident: {$type:ty} in $other_low:literal to $other_high:literal,)*
        })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$number_doc])* pub $number: SourcedQuantity,)*
            $($(#[$property_doc])* pub $property: SourcedProperty,)*
            $($($(#[$other_doc])* pub $other: $type,)*)?
        }

        impl $name {
            /// The names of all parameters, those that a file may leave out as well. Studies set none of a tail.
            #[allow(dead_code)]
            pub(in crate::catalogue) const NAMES: &'static [(&'static str, crate::catalogue::ParameterForm)] = &[
                $((stringify!($number), crate::catalogue::ParameterForm::Number),)*
                $((stringify!($property), crate::catalogue::ParameterForm::Property),)*
                $($((stringify!($other), <$type as ParameterField>::FORM),)*)?
            ];

            pub(in crate::catalogue) fn read(table: &mut TableReader<'_>) -> Option<Self> {
                $(let $number = table.quantity(NumberRange::$numbers, stringify!($number), $low, $high);)*
                $(let $property = table.property(stringify!($property));)*
                $($(let $other = <$type as ParameterField>::read(
                    table, stringify!($other), $other_low, $other_high
                );)*)?
                Some($name {
                    $($number: $number?,)* $($property: $property?,)* $($($other: $other?,)*)?
                })
            }

            /// Every parameter in the order of the file's documentation.
            pub fn entries(&self) -> Vec<ParameterEntry<'_>> {
                let mut entries = Vec::new();
                $(entries.extend(self.$number.entry(stringify!($number)));)*
                $(entries.push(ParameterEntry {
                    name: stringify!($property),
                    value: if self.$property.value { "yes".into() } else { "no".into() },
                    source: &self.$property.source,
                    estimate: self.$property.estimate,
                });)*
                $($(entries.extend(self.$other.entry(stringify!($other)));)*)?
                entries
            }

            pub(in crate::catalogue) fn out_of_bounds(&self) -> Vec<String> {
                let mut problems = Vec::new();
                $(if let Some(problem) = self.$number.problem($low, $high) {
                    problems.push(format!("`{}` {problem}", stringify!($number)));
                })*
                $($(if let Some(problem) = self.$other.problem($other_low, $other_high) {
                    problems.push(format!("`{}` {problem}", stringify!($other)));
                })*)?
                problems
            }
        }
    };
}

mod cloud;
mod measured;
mod network;
mod pmem;
mod tail;

pub use cloud::CloudParameters;
pub(super) use measured::ServicePlaces;
pub use measured::{
    MeasuredDevice, MeasuredLoad, MeasuredOrder, MeasuredParameters, MeasuredService, OrderProperty,
};
pub use network::{LinkParameters, NetworkParameters, RemoteMedium};
pub use pmem::PmemParameters;
pub use tail::{TailDistributions, TailMeasure, TailParameters};

parameters! {
    /// Parameters of the hard disk model. Seek times are without command overhead and include settling, as manuals
    /// print them. 1 MB is a million bytes.
    HddParameters
    numbers {
        rotation_rpm: All in 60.0 to 100000.0,
        /// Recording surfaces.
        heads: Whole in 1.0 to 64.0,
        /// To the neighbouring track.
        seek_track_read_ms: All in 0.001 to 1000.0,
        seek_track_write_ms: All in 0.001 to 1000.0,
        /// Mean over all pairs of cylinders.
        seek_average_read_ms: All in 0.001 to 1000.0,
        seek_average_write_ms: All in 0.001 to 1000.0,
        /// From the outermost cylinder to the innermost.
        seek_full_read_ms: All in 0.001 to 1000.0,
        seek_full_write_ms: All in 0.001 to 1000.0,
        /// From one surface to the next on the same cylinder.
        head_switch_ms: All in 0.001 to 100.0,
        /// Data under the head on the outermost track, without switches of head or track.
        transfer_outer_mb_s: All in 0.1 to 10000.0,
        transfer_inner_mb_s: All in 0.1 to 10000.0,
        /// Bands of cylinders of equal track length.
        zones: Whole in 1.0 to 1000.0,
        /// From the receipt of a command to the arm's start; a cache hit costs it too.
        command_ms: All in 0.0 to 100.0,
        interface_mb_s: All in 1.0 to 100000.0,
        /// Requests among which the shortest positioning time is looked for.
        queue_depth: Whole in 1.0 to 1024.0,
        /// A request that has waited this long is served next, wherever it lies.
        queue_age_ms: All in 1.0 to 100000.0,
        /// How far the disk reads on after a read, when nothing else is to be done.
        read_ahead_bytes: Whole in 0.0 to 1e9,
        /// Stretches of earlier reads that are remembered.
        read_segments: Whole in 1.0 to 1024.0,
        /// The volatile write-back cache; 0 when writes go to the platter before they complete.
        write_cache_bytes: Whole in 0.0 to 1e11,
    }
    properties {}
}

parameters! {
    /// Parameters of the flash model. A die is here a unit that reads or programs a page on its own: a die, or a plane
    /// of one. 1 MB is a million bytes.
    FlashParameters
    numbers {
        channels: Whole in 1.0 to 1024.0,
        dies_per_channel: Whole in 1.0 to 1024.0,
        /// The unit that is striped over channels and dies, read and programmed.
        page_bytes: Whole in 512.0 to 1048576.0,
        /// Pages of a die that are erased together.
        pages_per_block: Whole in 1.0 to 100000.0,
        /// From the array to the die's register, in the middle of the spread over the kinds of page.
        page_read_us: All in 0.0 to 100000.0,
        /// Of three pages one takes this share less and one this share more than the middle.
        page_read_spread: All in 0.0 to 0.9,
        page_program_us: All in 0.0 to 1e6,
        /// The longest that a read waits for a page being programmed: the time to suspend it.
        program_suspend_us: All in 0.0 to 1e6,
        block_erase_us: All in 0.0 to 1e6,
        /// The longest that a read waits for a block being erased: the time to suspend it.
        erase_suspend_us: All in 0.0 to 1e6,
        channel_mb_s: All in 1.0 to 100000.0,
        interface_read_mb_s: All in 1.0 to 1000000.0,
        interface_write_mb_s: All in 1.0 to 1000000.0,
        /// Interface, controller and mapping, each way together; requests overlap in it.
        command_read_us: All in 0.0 to 100000.0,
        command_write_us: All in 0.0 to 100000.0,
        /// Commands that the controller can start in a second.
        read_iops: All in 1.0 to 1e9,
        write_iops: All in 1.0 to 1e9,
        /// At which pages are programmed, be they the host's or garbage collection's.
        program_mb_s: All in 0.1 to 1000000.0,
        /// Spare flash over the capacity: (physical - capacity) / capacity. It sets the write amplification.
        over_provisioning_percent: All in 0.0 to 1000.0,
        write_buffer_bytes: All in 4096.0 to 1e11,
        /// A flush that has nothing to wait for.
        flush_us: All in 0.0 to 1e6,
        /// The host writes that the maker warrants for the drive's life; 0 when nothing is stated.
        rated_write_tb: All in 0.0 to 1e7,
    }
    properties {
        /// The write buffer outlives a power cut, so that a flush or FUA need not wait for it.
        power_loss_protection,
        /// Reads and writes share the interface, as on SATA.
        half_duplex,
        /// Data is written over in place, as 3D XPoint does: no garbage collection, no erasing.
        in_place,
    }
    others {
        /// Of consumer SSDs: what is written with one bit a cell first, and moved on when idle.
        slc_cache_bytes: {Option<SourcedQuantity>} in 0.0 to 1e13,
        slc_program_mb_s: {Option<SourcedQuantity>} in 0.1 to 1000000.0,
        /// Pages that a die programs at once: planes times bits a cell. `page_program_us` is the time of all of them.
        program_pages: {Option<SourcedQuantity>} in 1.0 to 1024.0,
        /// So many gather in the write buffer before a die begins; `program_pages` when not stated.
        gather_pages: {Option<SourcedQuantity>} in 1.0 to 1024.0,
        /// Planes of a die that read side by side; 1 when not stated.
        planes_per_die: {Option<SourcedQuantity>} in 1.0 to 16.0,
        /// How often a program or an erase may be suspended; without a bound when not stated.
        suspensions: {Option<SourcedQuantity>} in 0.0 to 1000000.0,
        /// Pages that garbage collection reads from a die in one go, which no read interrupts.
        copy_run_pages: {Option<SourcedQuantity>} in 1.0 to 1024.0,
        /// What garbage collection copies in one turn, while the host's writes wait in the buffer or before it.
        copy_turn_bytes: {Option<SourcedQuantity>} in 4096.0 to 1e11,
        /// Where the middle one of three pages lies: 1 with the slow one, -1 with the fast one.
        page_read_skew: {Option<SourcedQuantity>} in -1.0 to 1.0,
        /// For so long the controller acknowledges no write ..
        write_stall_us: {Option<SourcedQuantity>} in 0.0 to 1e7,
        /// .. after so many bytes.
        write_stall_bytes: {Option<SourcedQuantity>} in 4096.0 to 1e12,
        /// Commands that the controller holds at once; others wait in the host's queues.
        command_slots: {Option<SourcedQuantity>} in 1.0 to 65536.0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumKind {
    Hdd,
    /// Flash, and other solid-state memory behind a block interface.
    Flash,
    /// A volume that a cloud rents out.
    Cloud,
    /// Persistent memory on the memory bus.
    Pmem,
    /// A medium behind a link.
    Network,
    /// A real device as it was profiled.
    Measured,
}

impl MediumKind {
    pub const ALL: &'static [MediumKind] = &[
        MediumKind::Hdd,
        MediumKind::Flash,
        MediumKind::Cloud,
        MediumKind::Pmem,
        MediumKind::Network,
        MediumKind::Measured,
    ];

    /// As catalogue files write it.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Hdd => "hdd",
            MediumKind::Flash => "flash",
            MediumKind::Cloud => "cloud",
            MediumKind::Pmem => "pmem",
            MediumKind::Network => "network",
            MediumKind::Measured => "measured",
        }
    }

    /// The parameters that a study may set where it names such a medium, each with what it may be set to.
    pub fn parameters(self) -> &'static [(&'static str, ParameterForm)] {
        match self {
            MediumKind::Hdd => HddParameters::NAMES,
            MediumKind::Flash => FlashParameters::NAMES,
            MediumKind::Cloud => CloudParameters::NAMES,
            MediumKind::Pmem => PmemParameters::NAMES,
            MediumKind::Network => LinkParameters::NAMES,
            MediumKind::Measured => MeasuredDevice::NAMES,
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "a medium has one, and there are tens of media")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelParameters {
    Hdd(HddParameters),
    Flash(FlashParameters),
    Cloud(CloudParameters),
    Pmem(PmemParameters),
    Network(NetworkParameters),
    Measured(MeasuredParameters),
}

impl ModelParameters {
    pub fn kind(&self) -> MediumKind {
        match self {
            ModelParameters::Hdd(_) => MediumKind::Hdd,
            ModelParameters::Flash(_) => MediumKind::Flash,
            ModelParameters::Cloud(_) => MediumKind::Cloud,
            ModelParameters::Pmem(_) => MediumKind::Pmem,
            ModelParameters::Network(_) => MediumKind::Network,
            ModelParameters::Measured(_) => MediumKind::Measured,
        }
    }

    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        match self {
            ModelParameters::Hdd(parameters) => parameters.problems(),
            ModelParameters::Flash(parameters) => parameters.problems(),
            ModelParameters::Cloud(parameters) => parameters.problems(),
            ModelParameters::Pmem(parameters) => parameters.problems(),
            ModelParameters::Network(parameters) => parameters.problems(),
            ModelParameters::Measured(parameters) => parameters.problems(),
        }
    }

    /// Every parameter, for listing.
    pub fn entries(&self) -> Vec<ParameterEntry<'_>> {
        match self {
            ModelParameters::Hdd(parameters) => parameters.entries(),
            ModelParameters::Flash(parameters) => parameters.entries(),
            ModelParameters::Cloud(parameters) => parameters.entries(),
            ModelParameters::Pmem(parameters) => parameters.entries(),
            ModelParameters::Network(parameters) => parameters.entries(),
            ModelParameters::Measured(parameters) => parameters.entries(),
        }
    }

    /// Whether a seek is what costs: what an operating system calls rotational.
    pub fn is_rotational(&self) -> bool {
        match self {
            ModelParameters::Hdd(_) => true,
            ModelParameters::Network(parameters) => parameters.inner.model.is_rotational(),
            ModelParameters::Measured(parameters) => parameters.order.value == MeasuredOrder::Any,
            ModelParameters::Flash(_) | ModelParameters::Cloud(_) | ModelParameters::Pmem(_) => false,
        }
    }

    /// Whether the machine that a volume is attached to bounds it.
    pub fn has_instance(&self) -> bool {
        match self {
            ModelParameters::Cloud(volume) => {
                volume.instance_iops.is_some() || volume.instance_mb_s.is_some()
            }
            ModelParameters::Network(parameters) => parameters.inner.model.has_instance(),
            _ => false,
        }
    }

    /// The same volume at a machine without limits of its own.
    pub(crate) fn without_instance(mut self) -> ModelParameters {
        match &mut self {
            ModelParameters::Cloud(volume) => {
                volume.instance_iops = None;
                volume.instance_mb_s = None;
                volume.instance_burst_iops = None;
                volume.instance_burst_mb_s = None;
                volume.instance_burst_s = None;
            }
            ModelParameters::Network(parameters) => {
                let inner_model = parameters.inner.model.clone();
                parameters.inner.model = inner_model.without_instance();
            }
            _ => {}
        }
        self
    }

    /// How much takes in writes before the medium shows: what must be full for a steady state.
    pub fn write_buffer_bytes(&self) -> f64 {
        match self {
            ModelParameters::Hdd(parameters) => parameters.write_cache_bytes.value,
            ModelParameters::Flash(parameters) => parameters.write_buffer_bytes.value,
            ModelParameters::Cloud(_) => 0.0,
            ModelParameters::Pmem(parameters) => parameters.write_queue_bytes.value,
            ModelParameters::Network(parameters) => parameters.inner.model.write_buffer_bytes(),
            ModelParameters::Measured(parameters) => parameters.device.write_buffer_bytes.value,
        }
    }
}

impl HddParameters {
    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.out_of_bounds();
        for (operation, track, average, full) in [
            ("read", &self.seek_track_read_ms, &self.seek_average_read_ms, &self.seek_full_read_ms),
            ("write", &self.seek_track_write_ms, &self.seek_average_write_ms, &self.seek_full_write_ms),
        ] {
            let (lowest, highest) = crate::media::hdd::seek::average_bounds_ms(track.value, full.value);
            if full.value <= track.value {
                problems.push(format!(
                    "the full-stroke {operation} seek ({} ms) must be longer than that to the next track ({} ms)",
                    full.value, track.value
                ));
            } else if !(average.value > lowest && average.value < highest) {
                problems.push(format!(
                    "an average {operation} seek of {} ms does not fit {} ms to the next track and {} ms over \
                     the full stroke: it lies between {lowest:.2} and {highest:.2} ms on any real arm",
                    average.value, track.value, full.value
                ));
            }
        }
        if self.transfer_inner_mb_s.value > self.transfer_outer_mb_s.value {
            problems.push("the inner tracks are faster than the outer ones".into());
        }
        problems
    }
}

/// Each takes memory; no device has a hundredth.
const MAX_PLANES: f64 = 1_048_576.0;

impl FlashParameters {
    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.out_of_bounds();
        if self.page_bytes.value % 512.0 != 0.0 {
            problems.push(format!("`page_bytes` is {}, not a multiple of 512", self.page_bytes.value));
        }
        if !self.in_place.value && self.over_provisioning_percent.value < 1.0 {
            problems.push(format!(
                "`over_provisioning_percent` is {}: garbage collection needs at least 1 % of spare flash",
                self.over_provisioning_percent.value
            ));
        }
        if self.slc_cache_bytes.is_some() != self.slc_program_mb_s.is_some() {
            problems.push("`slc_cache_bytes` and `slc_program_mb_s` go together".into());
        }
        if self.write_stall_us.is_some() != self.write_stall_bytes.is_some() {
            problems.push("`write_stall_us` and `write_stall_bytes` go together".into());
        }
        for (name, counted, needs_pages) in [
            ("program_pages", &self.program_pages, false),
            ("gather_pages", &self.gather_pages, true),
            ("planes_per_die", &self.planes_per_die, true),
            ("suspensions", &self.suspensions, true),
            ("copy_run_pages", &self.copy_run_pages, true),
            ("command_slots", &self.command_slots, false),
        ] {
            let Some(counted) = counted else { continue };
            if counted.value.fract() != 0.0 {
                problems.push(format!("`{name}` is {}, not a whole number", counted.value));
            }
            if needs_pages && self.program_pages.is_none() {
                problems.push(format!("`{name}` needs `program_pages`"));
            }
        }
        let pages = |counted: &Option<SourcedQuantity>| counted.as_ref().map(|counted| counted.value);
        if let Some((gathered, programmed)) = pages(&self.gather_pages).zip(pages(&self.program_pages))
            && gathered > programmed
        {
            problems.push("`gather_pages` is more than `program_pages`".into());
        }
        // Programs of several pages do not wait for the channel behind one another, so it must not be what limits them.
        let channels_mb_s = self.channels.value.floor() * self.channel_mb_s.value;
        if self.program_pages.is_some() && self.program_mb_s.value > channels_mb_s {
            problems.push(format!(
                "`program_mb_s` is {}, but {} channels with {} MB/s each move {channels_mb_s}",
                self.program_mb_s.value, self.channels.value, self.channel_mb_s.value
            ));
        }
        let program_bytes = self.page_bytes.value * pages(&self.program_pages).unwrap_or(1.0);
        if self.program_pages.is_some() && self.write_buffer_bytes.value < program_bytes {
            problems.push(format!(
                "`write_buffer_bytes` is {}, but a die programs {program_bytes} bytes at once",
                self.write_buffer_bytes.value
            ));
        }
        let dies = self.channels.value.floor() * self.dies_per_channel.value.floor();
        let planes = dies * pages(&self.planes_per_die).unwrap_or(1.0);
        if planes > MAX_PLANES {
            problems.push(format!("{planes} planes in all are more than {MAX_PLANES}"));
        }
        // bytes a microsecond are MB/s
        let ceiling = dies * program_bytes / self.page_program_us.value.max(1e-9);
        if self.program_mb_s.value > ceiling {
            problems.push(format!(
                "`program_mb_s` is {}, but {dies} dies that program {program_bytes} bytes in {} us reach only \
                 {ceiling:.0} MB/s",
                self.program_mb_s.value, self.page_program_us.value
            ));
        }
        problems
    }
}
