//! A job in slow motion: its times are multiplied by the factor, and its rates divided by it, so that the modelled disk
//! gets the load that the job asks for. Values that name a placeholder of this machine's clock are left alone.

use std::ops::Range;

use super::block_sizes::BlockSizes;
use super::directions::DirectionValues;
use super::job_file::{FioJobSection, JobFile, JobOption};
use super::mistake::JobMistake;
use super::options::{self, OptionRule, RateUnit, TimeUnit};
use super::value::KiloBase;

/// A value that names one of these counts by this machine's clock already.
pub(crate) const CLOCK_PLACEHOLDERS: [&str; 3] = ["{time}", "{duration_s}", "{warmup_s}"];

/// A rate may be so much off for being a whole number.
const ROUNDING: f64 = 0.005;
/// A floor may be so much lower for being a whole number.
const FLOOR_LOSS: f64 = 0.1;
/// fio's own `rate_cycle`, in milliseconds.
const RATE_CYCLE_MS: u64 = 1000;

/// The job's text for a machine that is slower by this factor.
///
/// # Errors
/// The first value that can't be converted.
pub fn slowed(text: &str, factor: f64) -> Result<String, JobMistake> {
    let file = JobFile::parse(text);
    if factor == 1.0 {
        return Ok(text.to_owned());
    }
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for job in file.jobs() {
        let kilo = KiloBase::from_job(&job);
        let section = job.section();
        let end = section.settings.last().map_or(section.span.end, |setting| setting.span.end);
        let mut further = String::new();
        // Settings of a `[global]` section are repeated here, where their block sizes are known.
        for name in converted_names() {
            let Some(setting) = job.setting(name).filter(|setting| !is_on_this_clock(setting.text())) else {
                continue;
            };
            let (name, value) = converted(&job, setting, kilo, factor)?;
            further += &format!("\n{name}={value}");
        }
        let has_floor = ["rate_min", "rate_iops_min"].iter().any(|name| job.setting(name).is_some());
        if has_floor && job.setting("rate_cycle").is_none() {
            further += &format!("\nrate_cycle={}", times(RATE_CYCLE_MS, factor));
        }
        edits.push((end..end, further));
    }
    for setting in file.sections.iter().flat_map(|section| &section.settings) {
        let is_converted = converted_names().any(|name| name == setting.name());
        if is_converted && !is_on_this_clock(setting.text()) {
            edits.push((setting.span.clone(), String::new()));
        }
    }
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    let mut slowed = text.to_owned();
    for (span, new) in edits.into_iter().rev() {
        slowed.replace_range(span, &new);
    }
    Ok(slowed)
}

/// The options that slow motion changes.
fn converted_names() -> impl Iterator<Item = &'static str> {
    options::OPTIONS
        .iter()
        .filter(|option| matches!(option.rule, OptionRule::Duration(_) | OptionRule::Rate(_)))
        .map(|option| option.name)
}

/// Whether a value counts by this machine's clock already.
pub(super) fn is_on_this_clock(value: &str) -> bool {
    CLOCK_PLACEHOLDERS.iter().any(|placeholder| value.contains(placeholder))
}

/// The part of a value that slow motion could not change, if any.
pub(super) fn unreadable(setting: &JobOption, rule: OptionRule) -> Option<JobMistake> {
    let value = setting.text();
    if is_on_this_clock(value) {
        return None;
    }
    let kilo = KiloBase::default();
    let expected = match rule {
        OptionRule::Duration(unit) if setting.value.is_none() || unit.number(value, kilo).is_none() => {
            unit.example()
        }
        OptionRule::Rate(_) if setting.value.is_none() || rates(value, kilo).is_none() => {
            "whole numbers with k, m or g, as in 500 or 1m,500k"
        }
        // fio takes it per second of its clock.
        OptionRule::SteadyState if value.contains("slope") => "a limit of the deviation, as in iops:2%",
        OptionRule::SteadyState if !value.trim().ends_with('%') => "a share, as in iops:2%",
        _ => return None,
    };
    Some(unconverted(
        setting,
        "counts by fio's clock, and Underlay can't convert it to slow motion",
        format!("expected {expected}, or a value with {{time}}, the factor of slow motion"),
    ))
}

fn unconverted(setting: &JobOption, problem: &str, expected: impl Into<String>) -> JobMistake {
    JobMistake::new(&setting.span, format!("fio's `{}={}` {problem}", setting.key, setting.text()), expected)
}

fn rates(value: &str, kilo: KiloBase) -> Option<DirectionValues<u64>> {
    DirectionValues::parse(value, |part| kilo.number(part))
}

/// An option and its value in slow motion.
fn converted(
    job: &FioJobSection<'_>,
    setting: &JobOption,
    kilo: KiloBase,
    factor: f64,
) -> Result<(&'static str, String), JobMistake> {
    let option = options::find(&setting.key).expect("only known options are converted");
    let unreadable = || unreadable(setting, option.rule).unwrap_or_else(|| too_large(setting));
    match option.rule {
        OptionRule::Duration(unit) => {
            let number = unit.number(setting.text(), kilo).ok_or_else(unreadable)?;
            Ok((option.name, slowed_time(unit, number, factor)))
        }
        OptionRule::Rate(unit) => {
            let rates = rates(setting.text(), kilo).ok_or_else(unreadable)?;
            slowed_rate(job, setting, (option.name, unit), &rates, kilo, factor)
        }
        _ => Err(unreadable()),
    }
}

fn too_large(setting: &JobOption) -> JobMistake {
    unconverted(setting, "can't be converted to slow motion", "expected a smaller number")
}

fn slowed_time(unit: TimeUnit, number: u64, factor: f64) -> String {
    unit.written(times(number, factor))
}

/// A cast that would not fit gives the largest number.
fn times(number: u64, factor: f64) -> u64 {
    (number as f64 * factor).round() as u64
}

fn slowed_rate(
    job: &FioJobSection<'_>,
    setting: &JobOption,
    (name, unit): (&'static str, RateUnit),
    rates: &DirectionValues<u64>,
    kilo: KiloBase,
    factor: f64,
) -> Result<(&'static str, String), JobMistake> {
    let nearest = |rate: u64| (rate as f64 / factor).round() as u64;
    let is_near = |wanted: f64, actual: f64| (actual / wanted - 1.0).abs() <= ROUNDING;
    let sizes = BlockSizes::from_job(job, kilo);
    let is_poisson = job.value("rate_process") == Some("poisson");
    let fits = |rate: u64| rate == 0 || is_near(rate as f64 / factor, nearest(rate) as f64);
    let is_exact = |rate: u64| (nearest(rate) as f64 * factor - rate as f64).abs() < 1e-6 * rate as f64;
    let misfit = |detail: &str| {
        let problem = format!("divided by {factor}, the factor of slow motion, {detail}");
        let expected = "expected a higher rate, or another factor: `--time`, or `time` of [scale]";
        unconverted(setting, &problem, expected)
    };
    // A floor below which fio gives up: nothing is lost where it is a little lower.
    if name.ends_with("_min") {
        let lower = |rate: u64| (rate as f64 / factor) as u64;
        let is_kept = |rate: u64| {
            rate == 0 || (lower(rate) > 0 && lower(rate) as f64 >= (1.0 - FLOOR_LOSS) * rate as f64 / factor)
        };
        if rates.values().all(is_kept) {
            return Ok((name, rates.map(lower).to_string()));
        }
        // In bytes it is the same floor only where all requests of a kind are of one size.
        let is_of_one_size = sizes.is_some_and(|sizes| sizes.is_plain) && job.setting("bsrange").is_none();
        if let Some(sizes) = sizes
            && unit == RateUnit::Requests
            && is_of_one_size
            && job.setting("rate_min").is_none()
        {
            let in_bytes = |rate: u64, block: u64| (rate as f64 * block as f64 / factor) as u64;
            let pairs = rates.zip(sizes.smallest);
            if pairs.values().all(|(rate, block)| rate == 0 || in_bytes(rate, block) > 0) {
                return Ok(("rate_min", pairs.map(|(rate, block)| in_bytes(rate, block)).to_string()));
            }
        }
        return Err(misfit("is less than fio can count"));
    }
    match unit {
        // fio makes whole requests per second of it.
        RateUnit::Bytes if is_poisson => {
            let Some(sizes) = sizes else {
                return Err(misfit("may be no whole number of requests per second"));
            };
            let is_whole = |rate: u64, block: u64| {
                let wanted = rate as f64 / factor / block as f64;
                rate == 0 || is_near(wanted, wanted.floor())
            };
            match rates.zip(sizes.smallest).values().all(|(rate, block)| is_whole(rate, block)) {
                true => Ok((name, rates.map(nearest).to_string())),
                false => Err(misfit(
                    "is no whole number of requests per second, which `rate_process=poisson` needs",
                )),
            }
        }
        RateUnit::Bytes => match rates.values().all(fits) {
            true => Ok((name, rates.map(nearest).to_string())),
            false => Err(misfit("is less than fio can count")),
        },
        RateUnit::Requests if rates.values().all(|rate| rate == 0 || is_exact(rate)) => {
            Ok((name, rates.map(nearest).to_string()))
        }
        // fio itself takes a rate of requests as bytes of the smallest block.
        RateUnit::Requests if !is_poisson && sizes.is_some_and(|sizes| sizes.is_plain) => {
            let smallest = sizes.expect("they are known here").smallest;
            let in_bytes = |rate: u64, block: u64| (rate as f64 * block as f64 / factor).round() as u64;
            let fits = |rate: u64, block: u64| {
                rate == 0 || is_near(rate as f64 * block as f64 / factor, in_bytes(rate, block) as f64)
            };
            let pairs = rates.zip(smallest);
            match pairs.values().all(|(rate, block)| fits(rate, block)) && job.setting("rate").is_none() {
                true => Ok(("rate", pairs.map(|(rate, block)| in_bytes(rate, block)).to_string())),
                false => Err(misfit("is less than fio can count")),
            }
        }
        RateUnit::Requests => match rates.values().all(fits) {
            true => Ok((name, rates.map(nearest).to_string())),
            false => Err(misfit("is no whole number of requests per second, which fio needs here")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(options: &str, factor: f64) -> String {
        let text = format!("[t]\n{options}\n");
        let slowed = slowed(&text, factor).unwrap_or_else(|mistake| panic!("{options}: {mistake:?}"));
        slowed.lines().skip(1).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn job_rate_is_divided_by_slow_motion() {
        assert_eq!(slow("rate_iops=500", 4.0), "rate_iops=125");
        assert_eq!(slow("rate_iops=500,200", 4.0), "rate_iops=125,50");
        assert_eq!(slow("rate_iops=,200", 4.0), "rate_iops=,50");
        assert_eq!(slow("rate_iops=2k", 4.0), "rate_iops=512");
        assert_eq!(slow("rate=1m,", 4.0), "rate=262144,");
        assert_eq!(slow("rate=1m,,500k", 4.0), "rate=262144,,128000");
        assert_eq!(slow("ratemin=1m", 4.0), "rate_min=262144 rate_cycle=4000");
        assert_eq!(slow("kb_base=1000\nrate=1m", 4.0), "kb_base=1000 rate=250000");
        assert_eq!(slow("rate_iops=(500/{time})", 4.0), "rate_iops=(500/{time})");
    }

    /// 500 requests a second are 10.4 at x48, which fio can't count.
    #[test]
    fn indivisible_rate_is_given_in_bytes() {
        assert_eq!(slow("bs=4k\nrate_iops=500", 48.0), "bs=4k rate=42667,42667,42667");
        assert_eq!(slow("bs=4k,8k\nrate_iops=500,100", 48.0), "bs=4k,8k rate=42667,17067,17067");
        assert_eq!(slow("rate_iops=500,", 48.0), "rate=42667,");
        assert_eq!(slow("bsrange=8k-64k\nrate_iops=10", 48.0), "bsrange=8k-64k rate=1707,1707,1707");
        // Of a section with other blocks than another one.
        let text = "[global]\nrate_iops=500\n[a]\nbs=4k\n[b]\nbs=8k\n";
        let both = slowed(text, 48.0).unwrap();
        assert!(both.contains("bs=4k\nrate=42667,") && both.contains("bs=8k\nrate=85333,"), "{both}");
        assert!(!both.contains("rate_iops"), "{both}");
        for options in
            ["bssplit=4k/50:8k/50\nrate_iops=500", "rate_process=poisson\nrate_iops=500", "rate=50"]
        {
            let refused = slowed(&format!("[t]\n{options}\n"), 48.0).unwrap_err();
            assert!(refused.message.contains("divided by 48"), "{options}: {refused:?}");
        }
        assert_eq!(slow("rate_process=poisson\nrate_iops=480", 48.0), "rate_process=poisson rate_iops=10");
    }

    /// 10 requests a second are 0.6 at x16: as a whole number that would be no floor at all.
    #[test]
    fn floor_lost_to_rounding_becomes_bytes_or_refusal() {
        assert_eq!(slow("rate_iops_min=10", 16.0), "rate_min=2560,2560,2560 rate_cycle=16000");
        assert_eq!(slow("bs=8k\nrate_iops_min=31,", 16.0), "bs=8k rate_min=15872, rate_cycle=16000");
        assert_eq!(slow("rate_iops_min=1001", 16.0), "rate_iops_min=62 rate_cycle=16000");
        assert_eq!(slow("rate_iops_min=0", 16.0), "rate_iops_min=0 rate_cycle=16000");
        for options in [
            "bssplit=4k/50:8k/50\nrate_iops_min=10",
            "bsrange=4k-64k\nrate_iops_min=10",
            "rate_min=1m\nrate_iops_min=10",
            "rate_min=10",
        ] {
            let refused = slowed(&format!("[t]\n{options}\n"), 16.0).unwrap_err();
            assert!(refused.message.contains("divided by 16"), "{options}: {refused:?}");
        }
    }

    #[test]
    fn job_times_are_multiplied_by_slow_motion() {
        for (options, expected) in [
            ("thinktime=250", "thinktime=1000us"),
            ("thinktime=10ms", "thinktime=40000us"),
            ("latency_target=1ms\nlatency_window=2s", "latency_target=4000us latency_window=8000000us"),
            ("timeout=10", "runtime=40000000us"),
            ("runtime=1m", "runtime=240000000us"),
            ("ramp_time=2s", "ramp_time=8000000us"),
            ("max_latency=5ms", "max_latency=20000us"),
            ("log_avg_msec=500", "log_avg_msec=2000"),
            ("flow_sleep=10", "flow_sleep=40"),
            ("ss_dur=1\nss=iops:2%", "ss=iops:2% steadystate_duration=4000000us"),
            ("runtime={duration_s}\nramp_time={warmup_s}", "runtime={duration_s} ramp_time={warmup_s}"),
            ("iodepth=4", "iodepth=4"),
        ] {
            let mut lines: Vec<String> = slow(options, 4.0).split(' ').map(str::to_owned).collect();
            let mut wanted: Vec<&str> = expected.split(' ').collect();
            lines.sort();
            wanted.sort_unstable();
            assert_eq!(lines, wanted, "{options}");
            assert_eq!(slowed(options, 1.0).unwrap(), options);
        }
    }

    #[test]
    fn slope_with_time_placeholder_is_accepted() {
        let file = JobFile::parse("[t]\nss=iops_slope:(3/{time})%\n");
        assert!(unreadable(&file.sections[0].settings[0], OptionRule::SteadyState).is_none());
    }

    #[test]
    fn unconvertible_option_is_refused_with_value() {
        for options in [
            "rate_iops=many",
            "rate_iops={cores}",
            "rate_iops",
            "rate=(1m*2)",
            "rate=1,2,3,4",
            "thinktime=10sec",
            "thinktime=1.5ms",
            "runtime=-1",
            "ss=iops:100",
            "ss=iops_slope:0.3%",
            "steadystate=bw_slope:5%",
            "log_avg_msec=1s",
        ] {
            let file = JobFile::parse(&format!("[t]\n{options}\n"));
            let setting = &file.sections[0].settings[0];
            let rule = options::find(&setting.key).unwrap().rule;
            let mistake = unreadable(setting, rule).unwrap_or_else(|| panic!("{options}"));
            assert!(
                mistake.message.contains(&setting.key) && mistake.expected.contains("{time}"),
                "{mistake:?}"
            );
        }
    }
}
