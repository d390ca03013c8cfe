//! A measurement in a few lines, for people who watch.

use underlay_record::MeasuredWindow;
use underlay_report::quantity;

use crate::output;

pub(in crate::commands) fn sum_up(measured: &MeasuredWindow) {
    output::say(format_args!(
        "{} operations in {}: {}/s, mean {}, p99 {}",
        measured.operations,
        quantity::duration(measured.wall_s),
        quantity::rate(measured.throughput_per_s),
        quantity::latency(measured.latency.us.mean),
        quantity::latency(measured.latency.us.p99)
    ));
    if let Some(integrity) = measured.integrity.as_ref().filter(|integrity| integrity.mismatches > 0) {
        let (wrong, checked) = (integrity.mismatches, integrity.checked);
        output::say(format_args!(
            "wrong values: {wrong} of {checked} records that were read differ from the written ones"
        ));
        if wrong > checked / 2 {
            output::say(format_args!(
                "that is more than half: was the data loaded with dataintegrity=true and the same fieldcount, fieldlength and \
                 compressibility?"
            ));
        }
    }
    for wrong in measured.integrity.iter().flat_map(|integrity| &integrity.wrong_values) {
        output::say(format_args!("wrong value: {wrong}"));
    }
    for error in &measured.error_samples {
        output::say(format_args!("error: {error}"));
    }
}
