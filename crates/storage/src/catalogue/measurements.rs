//! `[[measured]]`: what a drive's requests took under a mixed load at a given rate, as someone measured it.

use serde::{Deserialize, Serialize};

use super::curves::SourcedDistribution;
use super::table::TableReader;

/// Streams that a load may have: each is played by itself.
const MAX_STREAMS: f64 = 1024.0;
/// Rows that a file may have: playing them all takes minutes.
const MAX_ROWS: usize = 200;
/// Requests that the streams of a row may have in flight together: the model keeps each of them.
const MAX_UNDER_WAY: u64 = 1 << 20;
/// Requests that a row may offer in a second: some seconds of it are played, request by request.
const MAX_OFFERED_PER_S: f64 = 1e7;
/// No device answers sooner.
const MIN_LATENCY_US: f64 = 0.001;

/// Latencies of a probe beside a load in the background. Requests of both arrive at random (with exponential gaps),
/// uniformly over the device, whether or not earlier ones are answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadMeasurement {
    pub block_bytes: u32,
    /// What the probe offers, the latencies of whose requests are measured.
    pub probe_per_s: f64,
    pub probe_read_percent: f64,
    /// What the other streams offer together.
    pub background_per_s: f64,
    pub background_read_percent: f64,
    pub background_streams: u32,
    /// Of each stream; a request beyond waits outside, which is not measured.
    pub most_under_way: u32,
    /// Writes answered in a second, those of the probe and of the background.
    pub writes_per_s: f64,
    /// Shares and microseconds. Empty where the probe has no such requests.
    pub read_us: Vec<(f64, f64)>,
    pub write_us: Vec<(f64, f64)>,
    /// No parameter was fitted to this row: it judges the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_out: bool,
    /// A key of the medium's `sources`.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl LoadMeasurement {
    /// Requests that all streams offer in a second.
    pub fn offered_per_s(&self) -> f64 {
        self.probe_per_s + self.background_per_s
    }

    /// Of these, the writes.
    pub fn offered_writes_per_s(&self) -> f64 {
        let share = |per_s: f64, read_percent: f64| per_s * (1.0 - read_percent / 100.0);
        share(self.probe_per_s, self.probe_read_percent)
            + share(self.background_per_s, self.background_read_percent)
    }

    /// In one line, with its source.
    pub(super) fn describe(&self) -> String {
        let point = |&(share, latency_us): &(f64, f64)| {
            format!("p{} {}", super::plain_number(share * 100.0), super::plain_number(latency_us))
        };
        let latencies: Vec<String> = [("reads", &self.read_us), ("writes", &self.write_us)]
            .into_iter()
            .filter(|(_, quantiles)| !quantiles.is_empty())
            .map(|(name, quantiles)| {
                format!("{name} {} us", quantiles.iter().map(point).collect::<Vec<_>>().join(", "))
            })
            .collect();
        let role = if self.held_out { ", held out of the fit" } else { "" };
        format!(
            "  {} requests/s of {} bytes offered, {} writes/s answered: {} [{}{role}]",
            super::plain_number(self.offered_per_s()),
            self.block_bytes,
            super::plain_number(self.writes_per_s),
            latencies.join(", "),
            self.source
        )
    }

    /// Whether the drive did not keep up with what was offered.
    pub fn is_saturated(&self) -> bool {
        self.writes_per_s < 0.97 * self.offered_writes_per_s()
    }
}

/// All rows; `None` for a mistake. `capacity_bytes` is the medium's, if it could be read.
pub(super) fn read(root: &mut TableReader<'_>, capacity_bytes: Option<f64>) -> Option<Vec<LoadMeasurement>> {
    const EXPECTED: &str = "one [[measured]] for each measured load";
    if !root.has("measured") {
        return Some(Vec::new());
    }
    let tables = root.tables("measured", "[[measured]]", EXPECTED)?;
    if tables.len() > MAX_ROWS {
        root.mistake(format!("{} rows of [[measured]]: {MAX_ROWS} at most", tables.len()));
        return None;
    }
    let rows: Vec<Option<LoadMeasurement>> =
        tables.into_iter().map(|table| read_row(table, capacity_bytes)).collect();
    rows.into_iter().collect()
}

fn read_row(mut table: TableReader<'_>, capacity_bytes: Option<f64>) -> Option<LoadMeasurement> {
    let block_bytes = table.whole("block_bytes", 512.0, 16_777_216.0);
    table.check_block(block_bytes.map(f64::from), capacity_bytes);
    let probe_per_s = table.number("probe_per_s", 1.0, 1e8);
    let probe_read_percent = table.number("probe_read_percent", 0.0, 100.0);
    let background_per_s = table.number("background_per_s", 0.0, 1e8);
    let background_read_percent = table.number("background_read_percent", 0.0, 100.0);
    let background_streams = table.whole("background_streams", 1.0, MAX_STREAMS);
    let most_under_way = table.whole("most_under_way", 1.0, 65536.0);
    let writes_per_s = table.number("writes_per_s", 0.0, 1e8);
    if let Some((streams, each)) = background_streams.zip(most_under_way) {
        // The probe is one more.
        let under_way = (u64::from(streams) + 1) * u64::from(each);
        if under_way > MAX_UNDER_WAY {
            table.mistake(format!(
                "`most_under_way` of the probe and all `background_streams` is {under_way}: {MAX_UNDER_WAY} at most"
            ));
        }
    }
    if let Some((probe, background)) = probe_per_s.zip(background_per_s)
        && probe + background > MAX_OFFERED_PER_S
    {
        table.mistake(format!(
            "`probe_per_s` and `background_per_s` together are {}: {MAX_OFFERED_PER_S} at most",
            super::plain_number(probe + background)
        ));
    }
    let read_us = read_quantiles(&mut table, "read_us", probe_read_percent != Some(0.0));
    let write_us = read_quantiles(&mut table, "write_us", probe_read_percent != Some(100.0));
    let held_out = table.flag("held_out");
    let source = table.source();
    let note = table.optional_text("note", "the conditions, as a string");
    table.reject_unknown();
    Some(LoadMeasurement {
        block_bytes: block_bytes?,
        probe_per_s: probe_per_s?,
        probe_read_percent: probe_read_percent?,
        background_per_s: background_per_s?,
        background_read_percent: background_read_percent?,
        background_streams: background_streams?,
        most_under_way: most_under_way?,
        writes_per_s: writes_per_s?,
        read_us: read_us?,
        write_us: write_us?,
        held_out,
        source: source?,
        note,
    })
}

/// `is_offered`: the probe has such requests.
fn read_quantiles(
    table: &mut TableReader<'_>,
    key: &'static str,
    is_offered: bool,
) -> Option<Vec<(f64, f64)>> {
    if !is_offered {
        if table.has(key) {
            let place = table.place_of(key);
            table.mistake_at(place, format!("`{key}` has latencies, but the probe has no such requests"));
        }
        return Some(Vec::new());
    }
    let quantiles =
        table.pairs(key, "pairs of a share and a latency in microseconds, [[0.5, 73], [0.99, 318]]")?;
    let distribution = SourcedDistribution { quantiles, source: String::new(), estimate: false };
    if let Some(problem) = distribution.problem(MIN_LATENCY_US, 1e9) {
        let place = table.place_of(key);
        table.mistake_at(place, format!("`{key}`: {problem}"));
        return None;
    }
    Some(distribution.quantiles)
}
