//! Reads the file of a medium.

use std::collections::BTreeMap;
use std::ops::Range;

use underlay_config::{Diagnostics, Spanned, nearest};

use super::contradictions::{
    self, ContradictionSubject, FigureContradiction, FileStatement, KnownContradiction,
};
use super::measurements;
use super::parameters::{
    CloudParameters, FlashParameters, HddParameters, LinkParameters, MeasuredParameters, MediumKind,
    ModelParameters, NetworkParameters, PmemParameters, RemoteMedium, ServicePlaces, TailParameters,
};
use super::table::{NumberRange, TableReader, parse_with};
use super::volume::{RULED, StatedParameters, VolumeRent, VolumeRules, rates_of};
use super::{CalibrationLabel, CatalogueMedium, FigureKind, MediumPrice, PublishedPerformance, files};

const LABELS: &[(&str, CalibrationLabel)] = &[
    ("datasheet", CalibrationLabel::Datasheet),
    ("estimate", CalibrationLabel::Estimate),
    ("proxy", CalibrationLabel::Proxy),
    ("measured", CalibrationLabel::Measured),
];

pub(super) fn parse(file_name: &str, text: &str) -> Result<CatalogueMedium, Diagnostics> {
    parse_with(file_name, "the medium", text, |root| medium(root, true))
}

/// Of a medium that lies behind another one's link.
pub(super) fn parse_inner(file_name: &str, text: &str) -> Result<CatalogueMedium, Diagnostics> {
    parse_with(file_name, "the medium", text, |root| medium(root, false))
}

/// `may_be_network`: what lies behind a link can't be a network volume.
fn medium(mut root: TableReader<'_>, may_be_network: bool) -> Option<CatalogueMedium> {
    let name = root.name();
    let title = root.text("title", "the product in words");
    let kind = root.choice("kind", &choices());
    let year = root.number("year", 1950.0, 2100.0);
    let label = root.choice("label", LABELS);
    let note = root.optional_text("note", "a text");
    // A note that is there but can't be read has a mistake of its own.
    if label == Some(CalibrationLabel::Proxy) && note.is_none() && !root.has("note") {
        root.mistake("a proxy needs a `note` that says what stands for what");
    }
    let measurements = root.source_keys("measurements");
    let capacity = root.quantity(NumberRange::Whole, "capacity_bytes", 1e6, 1e18);
    let mut volume = VolumeRules::read(&mut root);
    // The outer option is empty if the rules can't be read, the inner one if there are none.
    let rules = volume.as_ref().and_then(Option::as_ref);
    if let (Some(_), Some(kind)) = (rules, kind)
        && kind != MediumKind::Cloud
    {
        let place = root.place_of("volume");
        root.mistake_at(place, "only a cloud volume has rates that follow its size");
    }
    let sized = rules.zip(capacity.as_ref()).map(|(rules, capacity)| (rules, capacity.value));
    if let Some(reason) = sized.and_then(|(rules, capacity)| rules.size_refusal(capacity)) {
        let place = root.place_of("capacity_bytes");
        root.mistake_at(place, format!("no volume of this capacity is sold: {reason}"));
    }
    let logical_sector = match root.has("logical_sector_bytes") {
        true => root.quantity(NumberRange::Whole, "logical_sector_bytes", 512.0, 4096.0),
        false => None,
    };
    if logical_sector.as_ref().is_some_and(|sector| sector.value != 512.0 && sector.value != 4096.0) {
        let place = root.place_of("logical_sector_bytes");
        root.mistake_at(place, "`logical_sector_bytes` must be 512 or 4096");
    }
    let price = price(&mut root, rules.is_some());
    let mut services = Vec::new();
    let mut stated = Vec::new();
    let model = read_model(&mut root, "[model]", kind, may_be_network, sized, &mut stated, &mut services);
    // After the model: a rent follows the rates that the volume has.
    let price = price.map(|price| price.settled(sized, model.as_ref()));
    if let Some(Some(rules)) = &mut volume {
        rules.stated = stated;
    }
    let tail = read_tail(&mut root);
    let capacity_bytes = capacity.as_ref().map(|capacity| capacity.value);
    let published = published(&mut root, model.as_ref(), &services, capacity_bytes);
    let measured = measurements::read(&mut root, capacity_bytes);
    let sources = root.finish_file();
    // Only here what is missing ends it, so one reading lists all mistakes of the file.
    Some(CatalogueMedium {
        name: name?,
        title: title?.value,
        kind: kind?,
        year: year? as u16,
        label: label?,
        note,
        capacity: capacity?,
        logical_sector,
        price: price?,
        sources,
        measurements: measurements?,
        model: model?,
        volume: volume?,
        tail: tail?,
        published: published?,
        measured: measured?,
    })
}

/// `may_be_rent`: the medium is sold by its size, so that `[price]` may say what it costs a month.
pub(super) fn price(root: &mut TableReader<'_>, may_be_rent: bool) -> Option<MediumPrice> {
    let mut table = root.inside("price", "[price]", "a table with usd, date and source")?;
    let rent = if may_be_rent { VolumeRent::read(&mut table) } else { None };
    let usd = if rent.is_some() { Some(0.0) } else { table.number("usd", 0.01, 1e9) };
    // A price by the month is a rent, whether or not the file says so.
    let rented = table.flag("rented") || rent.is_some();
    let date = table.text("date", "the year or day of the price");
    let source = table.source();
    let estimate = table.flag("estimate");
    table.reject_unknown();
    Some(MediumPrice { usd: usd?, rented, date: date?.value, source: source?, estimate, rent })
}

impl MediumPrice {
    /// A rent is that of the volume's size and rates.
    fn settled(self, sized: Option<(&VolumeRules, f64)>, model: Option<&ModelParameters>) -> MediumPrice {
        let (Some(rent), Some((rules, capacity))) = (&self.rent, sized) else { return self };
        let rates = match model {
            Some(ModelParameters::Cloud(volume)) => rates_of(volume),
            _ => StatedParameters::new(),
        };
        let usd = rent.usd(rules.units(capacity), &rates);
        MediumPrice { usd, ..self }
    }
}

/// A cloud volume, whose rules give what it does not state.
fn read_volume(
    table: &mut TableReader<'_>,
    sized: Option<(&VolumeRules, f64)>,
    stated: &mut Vec<String>,
) -> Option<CloudParameters> {
    let Some((rules, capacity)) = sized else { return CloudParameters::read(table) };
    let by_hand: StatedParameters =
        RULED.into_iter().filter_map(|key| Some((key, table.peeked(key)?))).collect();
    stated.extend(by_hand.keys().map(|key| (*key).to_owned()));
    let units = rules.units(capacity);
    table.derive(rules.derived(units, &by_hand));
    let volume = CloudParameters::read(table)?;
    let refusals = rules.refusals(units, &rates_of(&volume));
    for (key, reason) in refusals.into_iter().chain(rules.burst_refusals(units, &volume)) {
        let place = table.place_of(key);
        table.mistake_at(place, reason);
    }
    Some(volume)
}

/// Where the parts of a published figure stand.
struct FigurePlaces {
    value: Range<usize>,
    of_instance: Range<usize>,
    /// Each of its `contradicts`.
    contradicts: Vec<Range<usize>>,
}

fn published(
    root: &mut TableReader<'_>,
    model: Option<&ModelParameters>,
    services: &[ServicePlaces],
    capacity_bytes: Option<f64>,
) -> Option<Vec<PublishedPerformance>> {
    const EXPECTED: &str = "one [[published]] for each published figure that the model is checked against";
    let choices: Vec<(&str, FigureKind)> =
        FigureKind::ALL.iter().map(|figure| (figure.name(), *figure)).collect();
    let counts = |table: &mut TableReader<'_>, key, low: f64, high, default: f64| {
        if table.has(key) { table.number(key, low, high) } else { Some(default) }
    };
    let (mut all, mut places) = (Vec::new(), Vec::new());
    let mut is_complete = true;
    for mut table in root.tables("published", "[[published]]", EXPECTED)? {
        let figure = table.choice("figure", &choices);
        let value = table.number("value", 0.001, 1e9);
        let queue_depth = counts(&mut table, "queue_depth", 1.0, 4096.0, 1.0);
        let block_bytes = counts(&mut table, "block_bytes", 512.0, 16e6, 4096.0);
        table.check_block(block_bytes, capacity_bytes);
        let percentile = table.has("percentile").then(|| table.number("percentile", 1.0, 99.9999)).flatten();
        if table.has("percentile") && figure.is_some_and(|figure| !figure.has_percentiles()) {
            table.mistake("only latencies have a `percentile`");
        }
        let source = table.source();
        let estimate = table.flag("estimate");
        let note = table.optional_text("note", "the conditions, as a string");
        let of_instance = table.flag("of_instance");
        let (contradicts, contradicts_places) = read_contradicts(&mut table);
        table.reject_unknown();
        if let (Some(figure), Some(value), Some(queue_depth), Some(block_bytes), Some(source)) =
            (figure, value, queue_depth, block_bytes, source)
        {
            let (queue_depth, block_bytes) = (queue_depth as u32, block_bytes as u32);
            places.push(FigurePlaces {
                value: table.place_of("value"),
                of_instance: table.place_of("of_instance"),
                contradicts: contradicts_places,
            });
            all.push(PublishedPerformance {
                figure,
                value,
                queue_depth,
                block_bytes,
                percentile,
                source,
                estimate,
                note,
                of_instance,
                contradicts,
            });
        } else {
            is_complete = false;
        }
    }
    // What was published is of the device as it was: where a study has changed it, neither says anything of the other.
    if root.has_source(super::quantity::SET_BY_STUDY) {
        return Some(all);
    }
    let place_of = |statement| match statement {
        FileStatement::Published(figure) => Some(places[figure].value.clone()),
        of_service => place_in(services, of_service),
    };
    for FigureContradiction { what: description, one, other } in contradictions::check_figures(&all, model) {
        if let (Some(one), Some(other)) = (place_of(one), place_of(other)) {
            root.contradiction(&description, one, other);
        }
    }
    // Where something could not be read, nobody knows what it would contradict.
    let Some(model) = model.filter(|_| is_complete) else { return Some(all) };
    for (figure, entry) in contradictions::unfounded(&all, Some(model)) {
        let subject = all[figure].contradicts[entry].with.name();
        let message = format!("nothing of {subject} contradicts this figure: leave `contradicts` out");
        root.mistake_at(places[figure].contradicts[entry].clone(), message);
    }
    for (figure, place) in all.iter().zip(&places) {
        if figure.of_instance && !model.has_instance() {
            let message = "[model] has no limits of an instance, so that no figure can be of one";
            root.mistake_at(place.of_instance.clone(), message);
        }
    }
    Some(all)
}

/// The known contradictions of a figure, and their places.
fn read_contradicts(table: &mut TableReader<'_>) -> (Vec<KnownContradiction>, Vec<Range<usize>>) {
    const EXPECTED: &str =
        "[{ with = \"the other figure, or the load of a service\", why = \"why the file has both\" }]";
    let (mut contradictions, mut places) = (Vec::new(), Vec::new());
    if !table.has("contradicts") {
        return (contradictions, places);
    }
    for mut entry in table.tables("contradicts", "`contradicts`", EXPECTED).unwrap_or_default() {
        let subject = entry.choice("with", &ContradictionSubject::choices());
        let reason = entry.text("why", "why the file has both, as a string");
        entry.reject_unknown();
        if let (Some(subject), Some(reason)) = (subject, reason) {
            contradictions.push(KnownContradiction { with: subject, why: reason.value });
            places.push(entry.place());
        }
    }
    (contradictions, places)
}

/// The kinds by the names that files use.
fn choices() -> Vec<(&'static str, MediumKind)> {
    MediumKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect()
}

/// Where a statement stands, if it is one of a service.
fn place_in(services: &[ServicePlaces], statement: FileStatement) -> Option<Range<usize>> {
    let place = &services[statement.service()?];
    match statement {
        FileStatement::Latency(_) => Some(place.latency_us.clone()),
        FileStatement::Iops(_) => Some(place.iops.clone()),
        FileStatement::Bandwidth(_) => Some(place.mb_s.clone()),
        FileStatement::Published(_) => None,
    }
}

/// Reads the table `model`, of the file or of what lies behind a link; `services` gets where those of a measured device
/// stand.
fn read_model(
    parent: &mut TableReader<'_>,
    name: &str,
    kind: Option<MediumKind>,
    may_be_network: bool,
    sized: Option<(&VolumeRules, f64)>,
    stated: &mut Vec<String>,
    services: &mut Vec<ServicePlaces>,
) -> Option<ModelParameters> {
    let mut table = parent.inside("model", name, "the table of the model's parameters")?;
    let parameters = match kind? {
        MediumKind::Hdd => HddParameters::read(&mut table).map(ModelParameters::Hdd),
        MediumKind::Flash => FlashParameters::read(&mut table).map(ModelParameters::Flash),
        MediumKind::Cloud => read_volume(&mut table, sized, stated).map(ModelParameters::Cloud),
        MediumKind::Pmem => PmemParameters::read(&mut table).map(ModelParameters::Pmem),
        MediumKind::Network if may_be_network => read_network(&mut table).map(ModelParameters::Network),
        MediumKind::Network => {
            table.mistake("a network volume can't be behind another: state one link");
            return None;
        }
        MediumKind::Measured => MeasuredParameters::read(&mut table, services).map(ModelParameters::Measured),
    };
    if let Some(ModelParameters::Measured(measured)) = &parameters {
        for FigureContradiction { what: description, one, other } in
            contradictions::check_services(&measured.service)
        {
            if let (Some(one), Some(other)) = (place_in(services, one), place_in(services, other)) {
                table.contradiction(&description, one, other);
            }
        }
    }
    table.reject_unknown();
    for problem in parameters.iter().flat_map(ModelParameters::problems) {
        table.mistake(problem);
    }
    parameters
}

/// The link, and the medium behind it: `medium = "name"`, or `[model.inner]` with `kind` and `model`.
fn read_network(table: &mut TableReader<'_>) -> Option<NetworkParameters> {
    let link = LinkParameters::read(table);
    let inner = if table.has("inner") {
        if let Some(field) = table.optional("medium") {
            table.mistake_at(field.span, "state `medium` or [model.inner], not both");
        }
        inner_in_place(table)
    } else {
        inner_by_name(table)
    };
    Some(NetworkParameters { link: link?, inner: Box::new(inner?) })
}

fn inner_in_place(table: &mut TableReader<'_>) -> Option<RemoteMedium> {
    let mut inside = table.inside("inner", "[model.inner]", "the table of the medium behind the link")?;
    let capacity_bytes = inside.number("capacity_bytes", 1e6, 1e18);
    let kind = inside.choice("kind", &choices());
    let model =
        read_model(&mut inside, "[model.inner.model]", kind, false, None, &mut Vec::new(), &mut Vec::new());
    let tail = read_tail(&mut inside);
    inside.reject_unknown();
    Some(RemoteMedium {
        name: None,
        capacity_bytes: capacity_bytes?,
        sources: BTreeMap::new(),
        model: model?,
        tail: tail?,
    })
}

fn inner_by_name(table: &mut TableReader<'_>) -> Option<RemoteMedium> {
    let expected = "the name of the medium behind the link, or describe it in [model.inner]";
    let Spanned { value: name, span } = table.text("medium", expected)?;
    // From the file itself: the list of all media may be what is being made right now.
    let Some(file) = files::find_medium(&name) else {
        let names =
            files::MEDIA.iter().filter_map(|file| file.path.strip_prefix("media/")?.strip_suffix(".toml"));
        let hint = match nearest(&name, names).first() {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`underlay media list` names all".to_owned(),
        };
        table.mistake_at(span, format!("there is no medium \"{name}\" in the catalogue: {hint}"));
        return None;
    };
    match parse_inner(&file.path, file.text) {
        Ok(medium) => Some(RemoteMedium {
            capacity_bytes: medium.capacity.value,
            name: Some(name),
            sources: medium.sources,
            model: medium.model,
            tail: medium.tail,
        }),
        Err(error) => {
            let first = error.findings().first().map_or_else(String::new, |finding| finding.to_one_line());
            table.mistake_at(span, format!("\"{name}\" can't be behind a link: {first}"));
            None
        }
    }
}

/// The outer `None` is for a mistake, the inner one for no tail.
fn read_tail(parent: &mut TableReader<'_>) -> Option<Option<TailParameters>> {
    if !parent.has("tail") {
        return Some(None);
    }
    let mut table = parent.inside("tail", "[tail]", "a table with `measure`, `read_us` and `write_us`")?;
    let tail = TailParameters::read(&mut table);
    table.reject_unknown();
    for problem in tail.iter().flat_map(TailParameters::problems) {
        table.mistake(problem);
    }
    tail.map(Some)
}
