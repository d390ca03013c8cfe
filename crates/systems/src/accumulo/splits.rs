//! The split points of a new table, so that its tablets have about the same number of records.

/// Names of records are `user` and the decimal digits of a hash that is uniform below 2^63.
const PREFIX: &str = "user";
/// Digits of a split point: enough for thousands of tablets.
const DIGITS: usize = 6;
/// 2^63, as a number with one digit before the point.
const MAX: f64 = 9.223_372_036_854_776;

/// The share of names that sort before `digits`, a number from 1 to 10 that stands for the leading digits. About nine
/// in ten hashes have 19 digits; the shorter ones are uniform over all leading digits.
fn share_before(digits: f64) -> f64 {
    let long = (MAX - 1.0) / MAX;
    let of_long = ((digits.min(MAX) - 1.0) / (MAX - 1.0)).max(0.0);
    let of_short = (digits - 1.0) / 9.0;
    long * of_long + (1.0 - long) * of_short
}

/// The first name of every tablet except the first.
pub(super) fn split_points(tablets: u64) -> Vec<String> {
    (1..tablets)
        .map(|tablet| {
            let share = tablet as f64 / tablets as f64;
            let (mut low, mut high) = (1.0_f64, 10.0_f64);
            for _ in 0..60 {
                let middle = f64::midpoint(low, high);
                if share_before(middle) < share { low = middle } else { high = middle }
            }
            let digits = (high * 10_f64.powi(DIGITS as i32 - 1)) as u64;
            format!("{PREFIX}{digits}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use underlay_workload::keys::{InsertOrder, KeyNaming};

    use super::*;

    #[test]
    fn tablets_have_about_equally_many_records() {
        let naming = KeyNaming { order: InsertOrder::Hashed, zero_padding: 1 };
        let names: Vec<String> =
            (0..40_000).map(|number| String::from_utf8(naming.name(number)).unwrap()).collect();
        for tablets in [1_usize, 2, 7, 24] {
            let points = split_points(tablets as u64);
            assert!(points.is_sorted() && points.len() == tablets - 1, "{points:?}");
            let mut sizes = vec![0; tablets];
            names.iter().for_each(|name| sizes[points.partition_point(|point| point <= name)] += 1);
            let mean = names.len() / tablets;
            assert!(sizes.iter().all(|&size| size > mean * 8 / 10 && size < mean * 12 / 10), "{sizes:?}");
        }
    }
}
