//! Latency distributions: HdrHistograms of nanoseconds, as text in the format's own V2 encoding.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Read as _;

use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// One hour in nanoseconds: slower operations are counted as this slow.
const MAX_NS: u64 = 3_600_000_000_000;
/// Three significant digits: an error below 0.1 %.
const DIGITS: u8 = 3;

/// The beginning of a compressed encoding.
const COMPRESSED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();
/// Before the counts.
const HEAD_BYTES: usize = 40;
/// Of an encoding that is not compressed: 64 ranges of 1024 counts each, of 9 bytes at most.
const MAX_BYTES: usize = HEAD_BYTES + 64 * 1024 * 9;

#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    #[error("not a histogram: {0}")]
    Form(&'static str),
    #[error("not a histogram: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("not a histogram: {0}")]
    Compression(#[from] std::io::Error),
    #[error("not a histogram: {0}")]
    Counts(#[from] hdrhistogram::serialization::DeserializeError),
}

thread_local! {
    static DECODED_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// How much memory all distributions that this thread has decoded took together: a bound for readers of many
/// untrusted ones.
pub fn decoded_bytes() -> u64 {
    DECODED_BYTES.get()
}

/// A distribution of latencies in nanoseconds of modelled time.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: BucketCounts,
}

/// A run of a thousand cells has some twenty thousand distributions, each of a few hundred values.
#[derive(Clone, Debug)]
enum BucketCounts {
    /// Some 300 kB, in which a value is counted in no time.
    Dense(hdrhistogram::Histogram<u64>),
    /// The recorded values in rising order, as they were read: (nanoseconds, count).
    Packed(Box<[(u64, u64)]>),
}

/// Equal when the same values were recorded equally often, however each is stored.
impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.values_ns().eq(other.values_ns())
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: BucketCounts::Packed(Box::default()) }
    }
}

fn empty() -> hdrhistogram::Histogram<u64> {
    hdrhistogram::Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("constant bounds are valid")
}

fn unpacked_counts(values: &[(u64, u64)]) -> hdrhistogram::Histogram<u64> {
    let mut dense = empty();
    values.iter().for_each(|&(ns, count)| dense.saturating_record_n(ns.max(1), count));
    dense
}

/// Microseconds, and how many values they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencySummary {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Histogram {
    fn dense(&self) -> Cow<'_, hdrhistogram::Histogram<u64>> {
        match &self.counts {
            BucketCounts::Dense(dense) => Cow::Borrowed(dense),
            BucketCounts::Packed(values) => Cow::Owned(unpacked_counts(values)),
        }
    }

    #[inline]
    fn dense_mut(&mut self) -> &mut hdrhistogram::Histogram<u64> {
        if let BucketCounts::Packed(values) = &self.counts {
            self.counts = BucketCounts::Dense(unpacked_counts(values));
        }
        match &mut self.counts {
            BucketCounts::Dense(dense) => dense,
            BucketCounts::Packed(_) => unreachable!("it was just unpacked"),
        }
    }

    fn is_empty(&self) -> bool {
        self.count() == 0
    }

    pub fn record_ns(&mut self, ns: u64) {
        self.dense_mut().saturating_record(ns.max(1));
    }

    pub fn record_n_ns(&mut self, ns: u64, count: u64) {
        self.dense_mut().saturating_record_n(ns.max(1), count);
    }

    pub fn merge(&mut self, other: &Histogram) {
        match &other.counts {
            _ if other.is_empty() => {}
            // All dense counts are made by `empty`, also those that were decoded.
            BucketCounts::Dense(others) => {
                self.dense_mut().add(others).expect("equal bounds by construction")
            }
            BucketCounts::Packed(values) => {
                values.iter().for_each(|&(ns, count)| self.record_n_ns(ns, count))
            }
        }
    }

    /// Takes the values of another away, as far as they are there.
    pub fn subtract(&mut self, other: &Histogram) {
        if other.is_empty() {
            return;
        }
        // The library's own subtraction fails when there is less than is taken.
        let mut left = Histogram::default();
        let mut others = other.values_ns().peekable();
        for (ns, count) in self.values_ns() {
            while others.next_if(|&(value, _)| value < ns).is_some() {}
            let removed = others.next_if(|&(value, _)| value == ns).map_or(0, |(_, removed)| removed);
            if count > removed {
                left.record_n_ns(ns, count - removed);
            }
        }
        *self = left;
    }

    pub fn clear(&mut self) {
        *self = Histogram::default();
    }

    pub fn count(&self) -> u64 {
        match &self.counts {
            BucketCounts::Dense(dense) => dense.len(),
            BucketCounts::Packed(values) => {
                values.iter().fold(0, |sum, &(_, count)| sum.saturating_add(count))
            }
        }
    }

    pub fn mean_us(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.dense().mean() / 1e3 }
    }

    /// The latency that a share `quantile` of the operations stays within; zero when nothing was recorded.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        if self.is_empty() { 0.0 } else { self.dense().value_at_quantile(quantile) as f64 / 1e3 }
    }

    pub fn summary_us(&self) -> LatencySummary {
        if self.is_empty() {
            return LatencySummary::default();
        }
        let dense = self.dense();
        let quantile_us = |quantile| dense.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            count: dense.len(),
            mean: dense.mean() / 1e3,
            min: dense.min() as f64 / 1e3,
            p50: quantile_us(0.5),
            p95: quantile_us(0.95),
            p99: quantile_us(0.99),
            p999: quantile_us(0.999),
            max: dense.max() as f64 / 1e3,
        }
    }

    /// The recorded values in rising order: (nanoseconds, count).
    pub fn values_ns(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (dense, packed) = match &self.counts {
            BucketCounts::Dense(dense) => (Some(dense), &[][..]),
            BucketCounts::Packed(values) => (None, &values[..]),
        };
        let dense = dense.into_iter().flat_map(hdrhistogram::Histogram::iter_recorded);
        dense.map(|step| (step.value_iterated_to(), step.count_at_value())).chain(packed.iter().copied())
    }

    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.dense(), &mut bytes)
            .expect("writing to memory cannot fail");
        base64_encode(&bytes)
    }

    /// Reads what [`encode`](Histogram::encode) writes, and what other HdrHistograms do of up to three significant
    /// digits.
    ///
    /// # Errors
    /// When the text is no HdrHistogram, or one that would take more memory than any that is written here.
    pub fn decode(text: &str) -> Result<Self, HistogramError> {
        let bytes = unpacked(&base64_decode(text)?)?;
        let read: hdrhistogram::Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice())?;
        // Bounds come from outside: re-recording gives ours, so that merging cannot fail later.
        let mut dense = empty();
        for step in read.iter_recorded() {
            dense.saturating_record_n(step.value_iterated_to().max(1), step.count_at_value());
        }
        let values: Box<[(u64, u64)]> =
            Histogram { counts: BucketCounts::Dense(dense) }.values_ns().collect();
        DECODED_BYTES.set(DECODED_BYTES.get().saturating_add(size_of_val(&*values) as u64));
        Ok(Histogram { counts: BucketCounts::Packed(values) })
    }
}

/// The V2 encoding without its compression, once its head is found to ask for no more memory than what is written here
/// needs: the reader takes it at its word.
fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, HistogramError> {
    let wrong = HistogramError::Form;
    let plain = match bytes.strip_prefix(&COMPRESSED) {
        Some(rest) => {
            // Behind a length, which the stream has itself.
            let packed = rest.get(4..).ok_or_else(|| wrong("it is cut short"))?;
            let mut plain = Vec::new();
            // One more than is allowed tells a stream that is too long from one that just fits.
            let most = MAX_BYTES as u64 + 1;
            flate2::read::ZlibDecoder::new(packed).take(most).read_to_end(&mut plain)?;
            plain
        }
        None => bytes.to_vec(),
    };
    if plain.len() > MAX_BYTES {
        return Err(wrong("it is longer than any of three significant digits"));
    }
    // The head: cookie, length, offset and digits of 4 bytes each, then bounds and ratio of 8 each.
    let word = |offset: usize| {
        plain.get(offset..offset + 4).map(|word| u32::from_be_bytes(word.try_into().unwrap_or_default()))
    };
    let (Some(length), Some(digits)) = (word(4), word(12)) else { return Err(wrong("it is cut short")) };
    if length as usize > plain.len().saturating_sub(HEAD_BYTES) {
        return Err(wrong("it claims to be longer than it is"));
    }
    // Memory grows tenfold with each digit.
    if digits > u32::from(DIGITS) {
        return Err(wrong("it has more than three significant digits"));
    }
    Ok(plain)
}

fn base64_encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn base64_decode(text: &str) -> Result<Vec<u8>, HistogramError> {
    use base64::Engine as _;
    Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encode())
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Histogram::decode(&text).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Histogram {
    fn schema_name() -> Cow<'static, str> {
        "Histogram".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An HdrHistogram of nanoseconds: V2 compressed encoding, in base64."
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_histogram(values_ns: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &value in values_ns {
            histogram.record_ns(value);
        }
        histogram
    }

    #[test]
    fn histogram_survives_encoding() {
        for values in [&[][..], &[1], &[0, 90_000, 90_001, 15_000_000, MAX_NS, u64::MAX]] {
            let histogram = make_histogram(values);
            let decoded = Histogram::decode(&histogram.encode()).unwrap();
            assert_eq!(decoded, histogram);
            assert_eq!(decoded.summary_us(), histogram.summary_us());
        }
    }

    /// A decoded histogram takes memory for its values alone, and can be recorded to as any other.
    #[test]
    fn decoded_histogram_stays_small_until_recording() {
        let before_bytes = decoded_bytes();
        let whole = make_histogram(&[1_000, 2_000, 2_000, 7_000_000]);
        let mut read = Histogram::decode(&whole.encode()).unwrap();
        assert_eq!(decoded_bytes() - before_bytes, 3 * 16);
        assert_eq!(
            (read.count(), read.quantile_us(0.9), read.mean_us()),
            (4, whole.quantile_us(0.9), whole.mean_us())
        );
        assert_eq!(read.encode(), whole.encode());
        read.merge(&make_histogram(&[]));
        read.merge(&read.clone());
        read.record_ns(9);
        assert_eq!(
            read,
            make_histogram(&[9, 1_000, 1_000, 2_000, 2_000, 2_000, 2_000, 7_000_000, 7_000_000])
        );
        read.clear();
        assert_eq!(read, make_histogram(&[]));
    }

    #[test]
    fn merged_histograms_are_those_of_all_values() {
        let mut merged = make_histogram(&[1_000, 2_000]);
        merged.merge(&Histogram::decode(&make_histogram(&[3_000, 4_000_000]).encode()).unwrap());
        assert_eq!(merged, make_histogram(&[1_000, 2_000, 3_000, 4_000_000]));
        assert_ne!(merged, make_histogram(&[1_000, 2_000, 3_000]));
    }

    #[test]
    fn merged_histogram_can_be_subtracted() {
        let (first, second) =
            (make_histogram(&[1_000, 2_000, 2_000, 7_000_000]), make_histogram(&[2_000, 3_000]));
        let mut both = first.clone();
        both.merge(&second);
        both.subtract(&second);
        assert_eq!(both, first);
        assert_eq!(both.summary_us(), first.summary_us());
        // Missing values can't be subtracted.
        both.subtract(&make_histogram(&[1_000, 1_000, 5_000]));
        assert_eq!(both, make_histogram(&[2_000, 2_000, 7_000_000]));
        both.subtract(&first);
        assert_eq!(both.summary_us(), LatencySummary::default());
    }

    /// Its 56 characters had the reader take 4.2 GB.
    #[test]
    fn head_demanding_much_memory_is_refused() {
        use std::io::Write as _;
        let encoded = |digits: u32, length: u32, counts: &[u8]| {
            let mut plain = 0x1c84_9313_u32.to_be_bytes().to_vec();
            for word in [length, 0, digits] {
                plain.extend(word.to_be_bytes());
            }
            plain.extend(1_u64.to_be_bytes());
            plain.extend((u64::MAX >> 1).to_be_bytes());
            plain.extend(1_f64.to_be_bytes());
            plain.extend(counts);
            let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
            packed.write_all(&plain).unwrap();
            let packed = packed.finish().unwrap();
            let bytes = [&COMPRESSED[..], &(packed.len() as u32).to_be_bytes(), &packed].concat();
            (base64_encode(&bytes), base64_encode(&plain))
        };
        let refused = |(packed, plain): (String, String), reason: &str| {
            for text in [packed, plain] {
                let error = Histogram::decode(&text).unwrap_err().to_string();
                assert!(error.contains(reason), "{text}: {error}");
            }
        };
        assert!(Histogram::decode(&encoded(3, 1, &[2]).0).is_ok());
        refused(encoded(3, u32::MAX, &[]), "longer than it is");
        refused(encoded(5, 1, &[2]), "three significant digits");
        refused(encoded(3, 1 << 30, &vec![1; MAX_BYTES]), "longer than any");
    }

    #[test]
    fn nonsense_is_refused() {
        let cut = &make_histogram(&[5_000, 7_000]).encode()[..20];
        for text in ["", "!", "AAAA", "HISTFAAAAB", cut] {
            assert!(Histogram::decode(text).is_err(), "{text:?} was taken for a histogram");
        }
    }
}
