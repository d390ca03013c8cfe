//! How far conclusions rest on what no source gives: an alarm where they can turn, a note where they can't.

use underlay_record::{InputCertificate, UnknownInput};

use super::{ReportWarning, WarningCollector, WarningSeverity};
use crate::comparison::inputs::{self, ConclusionReversal};
use crate::comparison::{CellResult, RunComparison, workload_in_words};
use crate::quantity;
use crate::statistics::ratio::RatioDifference;

const MEASURE: &str = "measure the device (`underlay media measure`), or set known values beside `medium`";
const READ_AS_MODEL: &str =
    "take the ratio as the model's, not the device's: no source says how the device handles such I/O";
const MORE_CLIENTS: &str =
    "compare with more clients, to keep the cores or devices busy, or in less slow motion";

/// Of two storages once, with all workloads in which it is so.
pub(super) fn about_turns(comparison: &RunComparison, found: &mut WarningCollector) {
    let mut pairs: Vec<Vec<&ConclusionReversal>> = Vec::new();
    for turn in &comparison.turns {
        let is_same = |group: &&mut Vec<&ConclusionReversal>| {
            let system = |turn: &ConclusionReversal| comparison.rows[turn.row].system;
            let (one, other) = (group[0], turn);
            (one.storage, one.against, system(one)) == (other.storage, other.against, system(other))
        };
        match pairs.iter_mut().find(is_same) {
            Some(group) => group.push(turn),
            None => pairs.push(vec![turn]),
        }
    }
    for turns in pairs {
        let cells: Vec<&CellResult> = turns.iter().filter_map(|turn| cell(comparison, turn)).collect();
        let each: Vec<String> = turns.iter().map(|turn| describe_reversal(comparison, turn)).collect();
        let (storage, against) =
            (comparison.storages[turns[0].storage], comparison.storages[turns[0].against]);
        let is_own_time =
            cells.iter().filter_map(|cell| inputs::find_certificate(cell)).any(rests_on_own_time);
        let remedy = if is_own_time { MORE_CLIENTS } else { MEASURE };
        let text = format!("{storage} against {against}: {}", each.join("; "));
        found.add_as_it_is(ReportWarning::new(WarningSeverity::Turns, text).remedy(remedy));
    }
}

fn cell<'c, 'a>(comparison: &'c RunComparison<'a>, turn: &ConclusionReversal) -> Option<&'c CellResult<'a>> {
    comparison.rows[turn.row].cells.get(turn.storage)?.as_ref()
}

fn rests_on_own_time(certificate: &InputCertificate) -> bool {
    certificate.unknown() == [UnknownInput::OwnTime]
}

/// `1.31x under A (half reads, half updates) could be 0.62–2.61x`
fn describe_reversal(comparison: &RunComparison, turn: &ConclusionReversal) -> String {
    let ratio = match turn.ratio.difference() {
        RatioDifference::NoneSeen => "no difference".to_owned(),
        _ => quantity::ratio(turn.ratio.value),
    };
    let workload = workload_in_words(comparison.rows[turn.row].cell);
    format!("{ratio} under {workload} could be {}x", quantity::ratio_interval(turn.range))
}

/// Where less is known than it takes, told once for each reason.
pub(super) fn about_inputs(result: &CellResult, name: &str, found: &mut WarningCollector) {
    let Some(certificate) = inputs::find_certificate(result) else { return };
    let unknown = certificate.unknown();
    if let Some(own_time) = inputs::own_time_in_words(certificate) {
        let extent = certificate.own_time.unwrap_or_default();
        found.add(
            ReportWarning::note(capitalised(&own_time)).extent(extent).remedy(MORE_CLIENTS).with_cell(name),
        );
    }
    if unknown.is_empty() || unknown == [UnknownInput::OwnTime] {
        return;
    }
    let measured = quantity::percent(certificate.measured());
    let text = format!(
        "{measured} of device time rests on measured figures: {}",
        inputs::devices_in_words(certificate)
    );
    let (remedy, cause) = match unknown.contains(&UnknownInput::Estimates) {
        true => (MEASURE, "estimates"),
        false => (READ_AS_MODEL, "coverage"),
    };
    // The certificate lists the estimates that a cell rests on; here they would make another sentence for each.
    let warning =
        ReportWarning::note(text).extent(1.0 - certificate.measured()).remedy(remedy).with_cell(name);
    found.add_by(format!("inputs: {cause}"), warning);
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
