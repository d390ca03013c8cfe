//! A measurement in a few lines, for whoever watches.

use underlay_record::Measured;
use underlay_report::quantity;

use crate::output;

pub(in crate::commands) fn sum_up(measured: &Measured) {
    output::say(format_args!(
        "{} operations in {}: {}/s, mean {}, p99 {}",
        measured.operations,
        quantity::duration(measured.wall_s),
        quantity::rate(measured.throughput_per_s),
        quantity::latency(measured.latency.us.mean),
        quantity::latency(measured.latency.us.p99)
    ));
    if let Some(integrity) = measured.integrity.filter(|integrity| integrity.mismatches > 0) {
        let (wrong, checked) = (integrity.mismatches, integrity.checked);
        output::say(format_args!(
            "wrong values: {wrong} of {checked} records that were read are not what was written"
        ));
        if wrong > checked / 2 {
            output::say(format_args!(
                "so many: were they loaded with dataintegrity=true and the same fieldcount, fieldlength and \
                 compressibility?"
            ));
        }
    }
    for sample in &measured.error_samples {
        match sample.strip_prefix("data integrity: ") {
            Some(wrong) => output::say(format_args!("wrong value: {wrong}")),
            None => output::say(format_args!("error: {sample}")),
        }
    }
}
