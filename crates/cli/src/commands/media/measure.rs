//! `underlay media measure`: a profile of a real disk, and the medium that is fitted to it.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use underlay_attach::ResourceRegistry;
use underlay_attach::probe::{PlaceError, PlaceFacts, ProbePlace, ProbeSettings};
use underlay_config::units;
use underlay_report::quantity;
use underlay_storage::fit::{
    self, DeviceIdentity, DeviceProfile, LoadShape, PointRole, PointScore, TargetError, WorstScore,
};

use crate::arguments::MeasureArguments;
use crate::exit_codes::{ExitFailure, INCOMPLETE, INTERRUPTED};
use crate::{output, signals};

const FULL_TIME: Duration = Duration::from_secs(180);
const QUICK_TIME: Duration = Duration::from_secs(40);
const FULL_FILE_BYTES: u64 = 4 << 30;
const QUICK_FILE_BYTES: u64 = 1 << 30;
/// Laying out the test file may take this share of the whole time.
const LAYOUT_SHARE: u32 = 4;
const MIN: Duration = Duration::from_secs(5);
const MAX: Duration = Duration::from_secs(24 * 3600);
const SEED: u64 = 7;

pub(crate) fn measure(arguments: &MeasureArguments) -> Result<ExitCode, ExitFailure> {
    let total = total_time(arguments)?;
    let size_bytes = match &arguments.size {
        Some(text) => Some(
            units::parse_bytes(text)
                .map_err(|problem| ExitFailure::Mistake(format!("--size {text}: {problem}")))?,
        ),
        None => None,
    };
    let dilation = super::serve::factor_of(arguments.dilation)?;
    let name = name_of(arguments)?;
    if let Some(usd) = arguments.price
        && !(0.01..=1e9).contains(&usd)
    {
        return Err(ExitFailure::Mistake(format!("--price is {usd}: expected dollars, from 0.01 on")));
    }
    let points_file = arguments.output.with_extension("points.json");
    // Before anything is measured: minutes of it would end in nothing.
    refuse_existing(&arguments.output)?;
    refuse_existing(&points_file)?;
    let stop = signals::stop_flag()?;
    let registry = ResourceRegistry::open()?;
    let bar = ProgressLine::new();
    let wanted = ProbeSettings {
        path: arguments.path.clone(),
        size_bytes,
        destroy: arguments.destroy,
        default_file_bytes: if arguments.quick { QUICK_FILE_BYTES } else { FULL_FILE_BYTES },
        longest_layout: total / LAYOUT_SHARE,
    };
    let mut place = match ProbePlace::open(&wanted, &registry, &stop, &mut |message| bar.say(message)) {
        Ok(place) => place,
        Err(PlaceError::Target(TargetError::Stopped)) => return Ok(stopped(&bar)),
        Err(error) => return Err(failure(error)),
    };
    let facts = place.facts.clone();
    // Writes are probed only where nothing is lost: in a test file of its own, or with --destroy.
    let shape = shape_of(arguments.quick, total, facts.what == "directory" || arguments.destroy);
    place.disk.slow_down(dilation);
    let profile = match fit::profile(&mut place.disk, &shape, &mut |progress| bar.step(progress)) {
        Ok(profile) => profile,
        Err(TargetError::Stopped) => return Ok(stopped(&bar)),
        Err(error) => return Err(ExitFailure::Failed(error.to_string())),
    };
    // The test file goes as soon as nothing needs it.
    drop(place);
    bar.say("fitting");
    let identity = identity(arguments, &name, &facts, &profile, dilation);
    let medium = fit::fit(&profile, &identity).map_err(|error| ExitFailure::Failed(error.to_string()))?;
    let scores =
        fit::score(&profile, &medium, SEED).map_err(|error| ExitFailure::Failed(error.to_string()))?;
    bar.clear();
    let text = format!("{}\n{}", header(&scores), fit::medium_text(&medium));
    write(&arguments.output, &text)?;
    write(&points_file, &serde_json::to_string(&profile).expect("a profile is plain data"))?;
    output::print(&table(&scores));
    output::print(&conclusion(&scores, medium.note.as_deref().unwrap_or_default()));
    output::print(&format!(
        "\n{} holds the medium, {} every point. In a study: medium = \"{}\"; to compare: underlay media verify {}",
        arguments.output.display(),
        points_file.display(),
        arguments.output.display(),
        arguments.output.display(),
    ));
    if WorstScore::from_scores(&scores, PointRole::HeldOut).is_poor() {
        output::say(format_args!("{POOR}; all points are in {}", points_file.display()));
        return Ok(ExitCode::from(INCOMPLETE));
    }
    Ok(ExitCode::SUCCESS)
}

const POOR: &str = "Do not use this medium in a study: it is far from the disk where it was not fitted to it. What else used the \
disk, or ran on this machine, meanwhile? Measure again on an idle machine, and longer (--time, without --quick)";

fn total_time(arguments: &MeasureArguments) -> Result<Duration, ExitFailure> {
    let Some(text) = &arguments.time else {
        return Ok(if arguments.quick { QUICK_TIME } else { FULL_TIME });
    };
    match units::parse_duration(text) {
        Ok(time) if (MIN..=MAX).contains(&time) => Ok(time),
        Ok(_) => Err(ExitFailure::Mistake(format!("--time {text}: expected 5 s to 24 h"))),
        Err(problem) => Err(ExitFailure::Mistake(format!("--time {text}: {problem}"))),
    }
}

/// The probes, stretched to what laying out leaves of the time.
fn shape_of(quick: bool, total: Duration, writes: bool) -> LoadShape {
    let shape = if quick { LoadShape::quick() } else { LoadShape::full() };
    let left = total - total / LAYOUT_SHARE;
    let factor = left.as_secs_f64() / shape.longest(writes).as_secs_f64();
    // Longer than meant shows nothing more.
    shape.stretched(factor.min(4.0))
}

fn name_of(arguments: &MeasureArguments) -> Result<String, ExitFailure> {
    let chosen = arguments.name.clone().or_else(|| {
        let stem = arguments.output.file_stem()?.to_string_lossy().to_lowercase();
        Some(stem.replace(['_', ' ', '.'], "-"))
    });
    let name = chosen.unwrap_or_default();
    let sound = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(sound) {
        return Err(ExitFailure::Mistake(format!(
            "'{name}' is not a valid medium name: use lowercase letters, digits and hyphens, or give one with --name"
        )));
    }
    Ok(name)
}

fn refuse_existing(path: &Path) -> Result<(), ExitFailure> {
    if path.exists() {
        return Err(ExitFailure::Mistake(format!(
            "{} exists: remove it, or give another --output",
            path.display()
        )));
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .map_or(PathBuf::from("."), Path::to_path_buf);
    if !folder.is_dir() {
        return Err(ExitFailure::Mistake(format!("{} is not a directory", folder.display())));
    }
    // Better known now than after minutes of measuring.
    std::fs::File::create_new(path).and_then(|_| std::fs::remove_file(path)).map_err(|error| {
        ExitFailure::from_place_error(format!("cannot write {}: {error}", path.display()), &error)
    })
}

fn write(path: &Path, text: &str) -> Result<(), ExitFailure> {
    underlay_files::write(path, text.as_bytes()).map_err(|error| {
        ExitFailure::from_place_error(format!("cannot write {}: {error}", path.display()), &error)
    })
}

fn failure(error: PlaceError) -> ExitFailure {
    match error {
        PlaceError::Refused(text) => ExitFailure::Mistake(text),
        PlaceError::Attach(error) => error.into(),
        PlaceError::Target(error) => ExitFailure::Failed(error.to_string()),
    }
}

fn stopped(bar: &ProgressLine) -> ExitCode {
    bar.clear();
    output::say("stopped: nothing was written");
    ExitCode::from(INTERRUPTED)
}

fn identity(
    arguments: &MeasureArguments,
    name: &str,
    facts: &PlaceFacts,
    profile: &DeviceProfile,
    dilation: f64,
) -> DeviceIdentity {
    let today = jiff::Zoned::now().date();
    let model = facts.model.clone().unwrap_or_else(|| "a device whose maker the kernel does not name".into());
    let mut conditions = format!("{model}, by direct I/O on a {}", facts.what);
    if let Some(filesystem) = &facts.filesystem {
        let _ = write!(conditions, " on {filesystem}");
    }
    let _ =
        write!(conditions, ", Linux {}, {} probed", facts.kernel, quantity::bytes(profile.span_bytes as f64));
    if let Some(cache) = &facts.write_cache {
        let _ = write!(conditions, ", the kernel takes its cache for {cache}");
    }
    if dilation != 1.0 {
        let _ = write!(conditions, ", a modelled device {dilation} times slower than what it stands for");
    }
    DeviceIdentity {
        name: name.to_owned(),
        title: format!("{model}, as measured"),
        year: today.year().clamp(1950, 2100) as u16,
        date: today.to_string(),
        capacity_bytes: facts.capacity_bytes,
        price_usd: arguments.price,
        conditions,
    }
}

/// The file's header: how good the fit is.
fn header(scores: &[PointScore]) -> String {
    let mut header = String::from(
        "# Written by `underlay media measure`. How far the fitted medium is from the measurements:\n",
    );
    for (role, label) in
        [(PointRole::Fitted, "points that it was fitted to"), (PointRole::HeldOut, "points held out")]
    {
        let worst = WorstScore::from_scores(scores, role);
        let _ = writeln!(
            header,
            "# {} {label}: mean latency off by {:.1} % (median) and {:.1} % (worst), demerit {:.1} % (median)",
            worst.points,
            worst.median_mean * 100.0,
            worst.worst_mean * 100.0,
            worst.median_demerit * 100.0
        );
    }
    if WorstScore::from_scores(scores, PointRole::HeldOut).is_poor() {
        let _ = writeln!(header, "# A poor fit: it does not stand for the disk, and no study should use it.");
    }
    header
}

fn table(scores: &[PointScore]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(["load", "block", "depth", "", "IOPS", "fitted", "mean", "p50", "p99", "demerit"]);
    for score in scores {
        let percent = |error: f64| format!("{:+.1} %", error * 100.0);
        let role = match (score.bound, score.role) {
            (true, _) => "bound",
            (false, PointRole::Fitted) => "",
            (false, PointRole::HeldOut) => "held out",
        };
        table.add_row(vec![
            Cell::new(score.pattern.name()),
            right(format!("{} KiB", score.block_bytes >> 10)),
            right(score.queue_depth.to_string()),
            Cell::new(role),
            right(quantity::number(score.measured_iops, 3)),
            right(quantity::number(score.modelled_iops, 3)),
            right(percent(score.mean_error())),
            right(percent(score.p50_error())),
            right(score.p99_error().map_or_else(|| "-".into(), percent)),
            right(format!("{:.1} %", score.distance.demerit * 100.0)),
        ]);
    }
    output::table(&table)
}

fn conclusion(scores: &[PointScore], note: &str) -> String {
    let (fitted, held_out) = (
        WorstScore::from_scores(scores, PointRole::Fitted),
        WorstScore::from_scores(scores, PointRole::HeldOut),
    );
    format!(
        "\n{note}\nMean latency of the {} held-out points: off by {:.1} % (median), {:.1} % (worst); of the {} fitted ones: {:.1} % and {:.1} %.",
        held_out.points,
        held_out.median_mean * 100.0,
        held_out.worst_mean * 100.0,
        fitted.points,
        fitted.median_mean * 100.0,
        fitted.worst_mean * 100.0
    )
}

/// One line that moves on a terminal; elsewhere a plain line now and then.
struct ProgressLine {
    bar: ProgressBar,
    interactive: bool,
}

impl ProgressLine {
    fn new() -> ProgressLine {
        let interactive = std::io::stderr().is_terminal();
        let target = if interactive { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        let style = ProgressStyle::with_template("{bar:32} {pos} of {len}, {msg}").expect("a valid template");
        bar.set_style(style.progress_chars("━╸ "));
        ProgressLine { bar, interactive }
    }

    fn step(&self, progress: &fit::CampaignProgress) {
        self.bar.set_length(progress.steps as u64);
        self.bar.set_position(progress.step as u64);
        self.bar.set_message(progress.what.clone());
        if !self.interactive && progress.step % 10 == 1 {
            output::say(format_args!("{} of {}: {}", progress.step, progress.steps, progress.what));
        }
    }

    fn say(&self, message: &str) {
        self.bar.set_message(message.to_owned());
        if !self.interactive {
            output::say(message);
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
