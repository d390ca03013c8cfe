//! Numbers with units as fio reads them, which is not always what one would think.

use super::job_file::FioJobSection;
use super::options::TimeUnit;

/// The value of `k`: fio's `kb_base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KiloBase(u64);

impl Default for KiloBase {
    fn default() -> KiloBase {
        KiloBase(1024)
    }
}

impl KiloBase {
    /// As a job says.
    pub fn from_job(job: &FioJobSection<'_>) -> KiloBase {
        match job.value("kb_base") {
            Some("1000") => KiloBase(1000),
            _ => KiloBase(1024),
        }
    }

    /// The bytes, or the plain number, that a value such as `4k` or `1MiB` stands for. Nothing where fio would read
    /// something else than a person.
    pub fn number(self, text: &str) -> Option<u64> {
        let text = text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let unit = text[digits..].to_ascii_lowercase();
        let (power, is_binary) = match unit.as_str() {
            "" | "b" => (0, false),
            "k" | "kb" => (1, false),
            "m" | "mb" => (2, false),
            "g" | "gb" => (3, false),
            "t" | "tb" => (4, false),
            "p" | "pb" => (5, false),
            "kib" | "ki" => (1, unit == "kib"),
            "mib" | "mi" => (2, unit == "mib"),
            "gib" | "gi" => (3, unit == "gib"),
            "tib" | "ti" => (4, unit == "tib"),
            "pib" | "pi" => (5, unit == "pib"),
            _ => return None,
        };
        // With `kb_base=1024`, its default, fio has the two the wrong way round.
        let base: u64 = match (self.0, is_binary) {
            (1024, true) => 1000,
            (1000, true) => 1024,
            (base, _) => base,
        };
        text[..digits].parse::<u64>().ok()?.checked_mul(base.checked_pow(power)?)
    }
}

impl TimeUnit {
    /// A time in the unit that [`TimeUnit::written`] writes: microseconds, or plain milliseconds.
    pub fn number(self, text: &str, kilo: KiloBase) -> Option<u64> {
        let bare: u64 = match self {
            TimeUnit::PlainMilliseconds | TimeUnit::PlainMicroseconds => return kilo.number(text),
            TimeUnit::Seconds => 1_000_000,
            TimeUnit::Microseconds => 1,
        };
        let text = text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let factor = match text[digits..].to_ascii_lowercase().as_str() {
            "" => bare,
            "us" | "usec" => 1,
            "ms" | "msec" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        text[..digits].parse::<u64>().ok()?.checked_mul(factor)
    }

    /// A time for fio.
    pub fn written(self, number: u64) -> String {
        match self {
            TimeUnit::PlainMilliseconds | TimeUnit::PlainMicroseconds => number.to_string(),
            TimeUnit::Seconds | TimeUnit::Microseconds => format!("{number}us"),
        }
    }

    /// The advice in a message.
    pub fn example(self) -> &'static str {
        match self {
            TimeUnit::PlainMilliseconds | TimeUnit::PlainMicroseconds => "a whole number, as in 500",
            TimeUnit::Seconds => "a whole number with one of us, ms, s, m, h, d, as in 90s",
            TimeUnit::Microseconds => "a whole number with one of us, ms, s, m, h, d, as in 10ms",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_fio_reads_them() {
        let base = KiloBase(1024);
        for (text, number) in [
            ("500", Some(500)),
            ("4k", Some(4096)),
            ("1M", Some(1 << 20)),
            ("1kib", Some(1000)),
            ("1Ki", Some(1024)),
            (" 2g ", Some(2 << 30)),
            ("1.5m", None),
            ("-1", None),
            ("", None),
            ("10%", None),
            ("99999999999999999999", None),
            ("18446744073709551615k", None),
        ] {
            assert_eq!(base.number(text), number, "{text}");
        }
        assert_eq!((KiloBase(1000).number("1k"), KiloBase(1000).number("1KiB")), (Some(1000), Some(1024)));
        let time = |unit: TimeUnit, text: &str| unit.number(text, base);
        assert_eq!(time(TimeUnit::Microseconds, "10ms"), Some(10_000));
        assert_eq!(time(TimeUnit::Microseconds, "250"), Some(250));
        assert_eq!(time(TimeUnit::Seconds, "90"), Some(90_000_000));
        assert_eq!(time(TimeUnit::Seconds, "2m"), Some(120_000_000));
        // fio takes this for 10 µs.
        assert_eq!(time(TimeUnit::Seconds, "10sec"), None);
        assert_eq!(time(TimeUnit::PlainMilliseconds, "1k"), Some(1024));
    }
}
