//! Every option of fio's job files, with what Underlay does with it. The check of a job, its slow motion and
//! docs/data/fio-options.json come from this table.

/// An option of a job file.
#[derive(Debug)]
pub struct FioOption {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub rule: OptionRule,
    /// Why, where the rule itself does not say it.
    pub reason: &'static str,
}

/// Underlay's treatment of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionRule {
    /// fio gets it as it stands.
    Taken,
    /// A time on fio's clock: multiplied by the factor of slow motion.
    Duration(TimeUnit),
    /// Work per second on fio's clock: divided by the factor of slow motion.
    Rate(RateUnit),
    /// It names files or directories, which must be on the storage under test.
    Files,
    /// It names directories, which must be on the storage under test.
    Directories,
    /// A part of a file's name: it must not lead out of the directory.
    NamePart,
    /// It names a log, which must be below `{logs}` or `{scratch}`.
    Log,
    /// The memory for buffers, which may be a file.
    Memory,
    /// `criterion:limit`, where the limit must be a share.
    SteadyState,
    /// The job waits for sections before it.
    Order,
    /// A whole number within these bounds. One of `u64::MAX` is none.
    Number { least: u64, most: u64 },
    /// These values only.
    Only(&'static [&'static str]),
    /// No value at all.
    Refused,
}

/// How fio reads a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// With a suffix such as `ms`; seconds without one.
    Seconds,
    /// With a suffix such as `ms`; microseconds without one.
    Microseconds,
    /// A plain number of milliseconds.
    PlainMilliseconds,
    /// A plain number of microseconds.
    PlainMicroseconds,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    Bytes,
    Requests,
}

/// The option of this name or alias.
pub fn find(name: &str) -> Option<&'static FioOption> {
    OPTIONS.iter().find(|option| option.name == name || option.aliases.contains(&name))
}

/// All names and aliases.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().flat_map(|option| std::iter::once(option.name).chain(option.aliases.iter().copied()))
}

/// The advice in a message for a whole number.
pub(super) fn number_in_words(least: u64, most: u64) -> String {
    match most {
        u64::MAX => format!("a whole number from {least} up"),
        most => format!("a whole number from {least} to {most}"),
    }
}

const fn option(
    name: &'static str,
    aliases: &'static [&'static str],
    rule: OptionRule,
    reason: &'static str,
) -> FioOption {
    FioOption { name, aliases, rule, reason }
}

const fn taken(name: &'static str) -> FioOption {
    option(name, &[], OptionRule::Taken, "")
}

const fn ruled(name: &'static str, rule: OptionRule, reason: &'static str) -> FioOption {
    option(name, &[], rule, reason)
}

const fn refused(name: &'static str, reason: &'static str) -> FioOption {
    option(name, &[], OptionRule::Refused, reason)
}

/// The engines that send requests to files or block devices.
pub const ENGINES: &[&str] = &[
    "sync",
    "psync",
    "vsync",
    "pvsync",
    "pvsync2",
    "libaio",
    "io_uring",
    "posixaio",
    "mmap",
    "splice",
    "falloc",
    "ftruncate",
    "filecreate",
    "filestat",
    "filedelete",
];

/// As many processes or threads does fio start.
const MAX_JOBS: u64 = 4096;

const CPUS: &str =
    "it counts this machine's CPUs, and Underlay chooses the CPUs of the system; state `[machine] cores`";
const TRACE: &str =
    "a trace has files and times of its own, which Underlay can't hold to the storage and to slow motion";
const PROGRAM: &str = "it runs a program on this host; a study has `load` and `settle` for that";
const GROUPS: &str = "Underlay puts fio into the control group of the system's budget";
const PASSTHROUGH: &str =
    "it needs a drive that takes NVMe or SCSI commands from programs, which a modelled device does not";
const OTHER_ENGINE: &str =
    "it belongs to an engine that sends its requests elsewhere than to a file or a block device";
const LOG_TIMES: &str = "the times inside the log are of this machine's clock";
const NO_PRIORITIES: &str = "modelled devices know no priorities";
const VERIFY: &str = "reads for verification count like other reads";

/// In the order in which `fio --cmdhelp` lists them, then the options of engines, then those of other versions.
pub static OPTIONS: &[FioOption] = &[
    taken("description"),
    ruled(
        "name",
        OptionRule::NamePart,
        "without `filename` it becomes the name of a file, and of each log that has no name of its own",
    ),
    ruled("wait_for", OptionRule::Order, ""),
    ruled("filename", OptionRule::Files, ""),
    taken("lockfile"),
    ruled("directory", OptionRule::Directories, ""),
    ruled("filename_format", OptionRule::NamePart, ""),
    taken("unique_filename"),
    ruled("opendir", OptionRule::Directories, ""),
    option("rw", &["readwrite"], OptionRule::Taken, ""),
    option("bs", &["blocksize"], OptionRule::Taken, ""),
    option("ba", &["blockalign"], OptionRule::Taken, ""),
    option("bsrange", &["blocksize_range"], OptionRule::Taken, ""),
    taken("bssplit"),
    option("bs_unaligned", &["blocksize_unaligned"], OptionRule::Taken, ""),
    taken("randrepeat"),
    taken("randseed"),
    taken("norandommap"),
    ruled("ignore_error", OptionRule::Taken, "errors that it names do not fail the cell"),
    taken("rw_sequencer"),
    ruled(
        "ioengine",
        OptionRule::Only(ENGINES),
        "other engines send their requests elsewhere than to a file or a block device",
    ),
    ruled("iodepth", OptionRule::Number { least: 1, most: u64::MAX }, ""),
    option("iodepth_batch", &["iodepth_batch_submit"], OptionRule::Taken, ""),
    option("iodepth_batch_complete_min", &["iodepth_batch_complete"], OptionRule::Taken, ""),
    taken("iodepth_batch_complete_max"),
    taken("iodepth_low"),
    taken("serialize_overlap"),
    taken("io_submit_mode"),
    taken("size"),
    option("io_size", &["io_limit"], OptionRule::Taken, ""),
    option("fill_device", &["fill_fs"], OptionRule::Taken, ""),
    taken("filesize"),
    taken("file_append"),
    option("offset", &["fileoffset"], OptionRule::Taken, ""),
    taken("offset_increment"),
    taken("offset_align"),
    taken("number_ios"),
    taken("random_generator"),
    taken("random_distribution"),
    taken("percentage_random"),
    taken("allrandrepeat"),
    option("nrfiles", &["nr_files"], OptionRule::Taken, ""),
    taken("file_service_type"),
    taken("openfiles"),
    taken("fallocate"),
    taken("fadvise_hint"),
    taken("fsync"),
    taken("fdatasync"),
    taken("write_barrier"),
    taken("sync_file_range"),
    taken("direct"),
    taken("atomic"),
    taken("buffered"),
    taken("overwrite"),
    taken("loops"),
    ruled("numjobs", OptionRule::Number { least: 1, most: MAX_JOBS }, ""),
    ruled(
        "startdelay",
        OptionRule::Only(&["0", "0s"]),
        "a job that begins later makes no requests for a part of the measured time, and runs on after the others",
    ),
    option("runtime", &["timeout"], OptionRule::Duration(TimeUnit::Seconds), ""),
    taken("time_based"),
    ruled("verify_only", OptionRule::Taken, VERIFY),
    ruled("ramp_time", OptionRule::Duration(TimeUnit::Seconds), ""),
    taken("clocksource"),
    option("mem", &["iomem"], OptionRule::Memory, ""),
    ruled("verify", OptionRule::Taken, VERIFY),
    ruled("do_verify", OptionRule::Taken, VERIFY),
    taken("verify_interval"),
    taken("verify_offset"),
    ruled("verify_pattern", OptionRule::Taken, "a file that it names is only read"),
    taken("verify_fatal"),
    taken("verify_dump"),
    taken("verify_async"),
    taken("verify_backlog"),
    taken("verify_backlog_batch"),
    taken("experimental_verify"),
    ruled("verify_state_load", OptionRule::Taken, "its file is in {scratch}"),
    ruled("verify_state_save", OptionRule::Taken, "its file is in {scratch}"),
    taken("trim_percentage"),
    taken("trim_verify_zero"),
    taken("trim_backlog"),
    taken("trim_backlog_batch"),
    ruled("write_iolog", OptionRule::Log, LOG_TIMES),
    refused("read_iolog", TRACE),
    refused("read_iolog_chunked", TRACE),
    refused("replay_no_stall", TRACE),
    refused("replay_redirect", TRACE),
    refused("replay_scale", TRACE),
    refused("replay_align", TRACE),
    refused("replay_time_scale", TRACE),
    refused("replay_skip", TRACE),
    refused("merge_blktrace_file", TRACE),
    refused("merge_blktrace_scalars", TRACE),
    refused("merge_blktrace_iters", TRACE),
    refused("exec_prerun", PROGRAM),
    refused("exec_postrun", PROGRAM),
    refused("ioscheduler", "Underlay sets the queue of the device"),
    ruled("zonemode", OptionRule::Only(&["none", "strided"]), "modelled devices have no zones of their own"),
    taken("zonesize"),
    taken("zonecapacity"),
    taken("zonerange"),
    taken("zoneskip"),
    taken("read_beyond_wp"),
    taken("max_open_zones"),
    taken("job_max_open_zones"),
    taken("ignore_zone_limits"),
    taken("zone_reset_threshold"),
    ruled("zone_reset_frequency", OptionRule::Taken, "it is a share of the writes, and not a rate"),
    taken("lockmem"),
    ruled("rwmixread", OptionRule::Number { least: 0, most: 100 }, ""),
    ruled("rwmixwrite", OptionRule::Number { least: 0, most: 100 }, ""),
    ruled(
        "nice",
        OptionRule::Only(&["0"]),
        "the priorities of CPU time decide whether the run is faithful, and Underlay sets them",
    ),
    ruled("prio", OptionRule::Taken, NO_PRIORITIES),
    ruled("prioclass", OptionRule::Taken, NO_PRIORITIES),
    ruled("thinktime", OptionRule::Duration(TimeUnit::Microseconds), ""),
    ruled("thinktime_spin", OptionRule::Duration(TimeUnit::Microseconds), ""),
    taken("thinktime_blocks"),
    taken("thinktime_blocks_type"),
    ruled("thinktime_iotime", OptionRule::Duration(TimeUnit::Seconds), ""),
    ruled("rate", OptionRule::Rate(RateUnit::Bytes), ""),
    option("rate_min", &["ratemin"], OptionRule::Rate(RateUnit::Bytes), ""),
    ruled(
        "rate_process",
        OptionRule::Taken,
        "`poisson` takes whole requests per second: a factor that leaves none is refused",
    ),
    option(
        "rate_cycle",
        &["ratecycle"],
        OptionRule::Duration(TimeUnit::PlainMilliseconds),
        "fio's 1,000 ms are stretched too where a job has `rate_min` or `rate_iops_min`",
    ),
    taken("rate_ignore_thinktime"),
    ruled(
        "rate_iops",
        OptionRule::Rate(RateUnit::Requests),
        "where the quotient is no whole number, fio gets the same rate in bytes",
    ),
    ruled(
        "rate_iops_min",
        OptionRule::Rate(RateUnit::Requests),
        "rounded down; where that takes away more than a tenth, fio gets the same rate in bytes",
    ),
    ruled("max_latency", OptionRule::Duration(TimeUnit::Microseconds), ""),
    ruled("latency_target", OptionRule::Duration(TimeUnit::Microseconds), ""),
    ruled("latency_window", OptionRule::Duration(TimeUnit::Microseconds), ""),
    taken("latency_percentile"),
    taken("latency_run"),
    taken("invalidate"),
    taken("sync"),
    taken("write_hint"),
    taken("create_serialize"),
    taken("create_fsync"),
    taken("create_on_open"),
    ruled("create_only", OptionRule::Only(&["0"]), "such a job has nothing to measure; make files in `load`"),
    taken("allow_file_create"),
    taken("allow_mounted_write"),
    taken("pre_read"),
    refused("cpumask", CPUS),
    refused("cpus_allowed", CPUS),
    taken("cpus_allowed_policy"),
    refused("numa_cpu_nodes", CPUS),
    refused("numa_mem_policy", "it names this machine's memory, and Underlay limits the system's memory"),
    taken("end_fsync"),
    taken("fsync_on_close"),
    taken("unlink"),
    taken("unlink_each_loop"),
    taken("exitall"),
    taken("exit_what"),
    taken("exitall_on_error"),
    option("stonewall", &["wait_for_previous"], OptionRule::Order, ""),
    taken("new_group"),
    taken("thread"),
    taken("per_job_logs"),
    ruled("write_bw_log", OptionRule::Log, LOG_TIMES),
    ruled("bwavgtime", OptionRule::Duration(TimeUnit::PlainMilliseconds), ""),
    ruled("write_lat_log", OptionRule::Log, LOG_TIMES),
    ruled("write_iops_log", OptionRule::Log, LOG_TIMES),
    ruled("iopsavgtime", OptionRule::Duration(TimeUnit::PlainMilliseconds), ""),
    taken("log_entries"),
    ruled("log_avg_msec", OptionRule::Duration(TimeUnit::PlainMilliseconds), ""),
    ruled("log_hist_msec", OptionRule::Duration(TimeUnit::PlainMilliseconds), ""),
    taken("log_hist_coarseness"),
    ruled("write_hist_log", OptionRule::Log, LOG_TIMES),
    option("log_max_value", &["log_window_value"], OptionRule::Taken, ""),
    taken("log_offset"),
    taken("log_prio"),
    taken("log_compression"),
    refused("log_compression_cpus", CPUS),
    taken("log_store_compressed"),
    taken("log_unix_epoch"),
    taken("log_alternate_epoch"),
    taken("log_alternate_epoch_clock_id"),
    taken("block_error_percentiles"),
    taken("group_reporting"),
    ruled("stats", OptionRule::Taken, "sections without statistics have no figures"),
    taken("zero_buffers"),
    taken("refill_buffers"),
    taken("scramble_buffers"),
    ruled("buffer_pattern", OptionRule::Taken, "a file that it names is only read"),
    taken("buffer_compress_percentage"),
    taken("buffer_compress_chunk"),
    taken("dedupe_percentage"),
    taken("dedupe_mode"),
    taken("dedupe_working_set_percentage"),
    taken("dedupe_global"),
    taken("clat_percentiles"),
    taken("lat_percentiles"),
    taken("slat_percentiles"),
    ruled("percentile_list", OptionRule::Taken, "each of them becomes a figure"),
    taken("significant_figures"),
    taken("disk_util"),
    ruled("gtod_reduce", OptionRule::Taken, "latencies are left out of the figures"),
    ruled("disable_lat", OptionRule::Taken, ""),
    ruled("disable_clat", OptionRule::Taken, "completion latencies are left out of the figures"),
    taken("disable_slat"),
    option("disable_bw_measurement", &["disable_bw"], OptionRule::Taken, ""),
    refused("gtod_cpu", CPUS),
    taken("unified_rw_reporting"),
    ruled("continue_on_error", OptionRule::Taken, "a cell with errors fails all the same, at its end"),
    taken("error_dump"),
    refused("profile", "a profile has files and options of its own"),
    refused("cgroup", GROUPS),
    refused("cgroup_nodelete", GROUPS),
    refused("cgroup_weight", GROUPS),
    taken("uid"),
    taken("gid"),
    ruled("kb_base", OptionRule::Taken, "Underlay reads the job's rates by it"),
    taken("unit_base"),
    taken("hugepage-size"),
    taken("flow_id"),
    taken("flow"),
    ruled("flow_sleep", OptionRule::Duration(TimeUnit::PlainMicroseconds), ""),
    option(
        "steadystate",
        &["ss"],
        OptionRule::SteadyState,
        "a slope, or a limit that is no share, counts by this machine's clock",
    ),
    option("steadystate_duration", &["ss_dur"], OptionRule::Duration(TimeUnit::Seconds), ""),
    option("steadystate_ramp_time", &["ss_ramp"], OptionRule::Duration(TimeUnit::Seconds), ""),
    // Options of engines that requests go through.
    taken("thp"),
    taken("hipri"),
    taken("hipri_percentage"),
    taken("uncached"),
    taken("nowait"),
    taken("userspace_reap"),
    ruled("cmdprio_percentage", OptionRule::Taken, NO_PRIORITIES),
    ruled("cmdprio_class", OptionRule::Taken, NO_PRIORITIES),
    ruled("cmdprio", OptionRule::Taken, NO_PRIORITIES),
    ruled("cmdprio_bssplit", OptionRule::Taken, NO_PRIORITIES),
    taken("fixedbufs"),
    taken("registerfiles"),
    taken("sqthread_poll"),
    refused("sqthread_poll_cpu", CPUS),
    taken("nonvectored"),
    taken("force_async"),
    taken("stat_type"),
    // Options of engines that are refused.
    refused("cmd_type", PASSTHROUGH),
    refused("readfua", PASSTHROUGH),
    refused("writefua", PASSTHROUGH),
    refused("sg_write_mode", PASSTHROUGH),
    refused("stream_id", PASSTHROUGH),
    refused("cpuload", OTHER_ENGINE),
    refused("cpuchunks", OTHER_ENGINE),
    refused("cpumode", OTHER_ENGINE),
    refused("exit_on_io_done", OTHER_ENGINE),
    refused("hostname", OTHER_ENGINE),
    refused("port", OTHER_ENGINE),
    refused("protocol", OTHER_ENGINE),
    refused("nodelay", OTHER_ENGINE),
    refused("listen", OTHER_ENGINE),
    refused("pingpong", OTHER_ENGINE),
    refused("interface", OTHER_ENGINE),
    refused("ttl", OTHER_ENGINE),
    refused("window_size", OTHER_ENGINE),
    refused("mss", OTHER_ENGINE),
    refused("program", OTHER_ENGINE),
    refused("arguments", OTHER_ENGINE),
    refused("grace_time", OTHER_ENGINE),
    refused("std_redirect", OTHER_ENGINE),
    refused("donorname", OTHER_ENGINE),
    refused("inplace", OTHER_ENGINE),
    refused("volume", OTHER_ENGINE),
    refused("brick", OTHER_ENGINE),
    refused("single-instance", OTHER_ENGINE),
    refused("skip_bad", OTHER_ENGINE),
    refused("uri", OTHER_ENGINE),
    refused("bindname", OTHER_ENGINE),
    refused("verb", OTHER_ENGINE),
    refused("clustername", OTHER_ENGINE),
    refused("pool", OTHER_ENGINE),
    refused("clientname", OTHER_ENGINE),
    refused("conf", OTHER_ENGINE),
    refused("busy_poll", OTHER_ENGINE),
    refused("touch_objects", OTHER_ENGINE),
    refused("rbdname", OTHER_ENGINE),
    // Hidden in fio's help, or of other versions than 3.33.
    taken("bs_is_seq_rand"),
    taken("softrandommap"),
    refused("verify_async_cpus", CPUS),
    option("iomem_align", &["mem_align"], OptionRule::Taken, ""),
    refused("thinkcycles", "it counts cycles of this machine's CPUs; use `thinktime_spin`"),
    ruled("steadystate_check_interval", OptionRule::Duration(TimeUnit::Seconds), ""),
    taken("ramp_size"),
    taken("end_syncfs"),
    taken("filetype"),
    taken("verify_header_seed"),
    taken("verify_write_sequence"),
    taken("verify_pattern_interval"),
    taken("log_issue_time"),
    taken("priohint"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;

    #[test]
    fn option_names_are_unique() {
        let mut seen = BTreeSet::new();
        assert_eq!(names().filter(|name| !seen.insert(*name)).collect::<Vec<_>>(), Vec::<&str>::new());
        assert_eq!(find("readwrite").map(|option| option.name), Some("rw"));
        for option in OPTIONS {
            let needs_one = matches!(option.rule, OptionRule::Refused | OptionRule::Only(_));
            assert!(!needs_one || !option.reason.is_empty(), "{} is refused without a reason", option.name);
        }
    }

    /// A newer fio has options that nobody has decided on.
    #[test]
    fn options_of_installed_fio_are_all_decided() {
        let ask = |argument: &str| {
            let output = Command::new("fio").arg(argument).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let Some(help) = ask("--cmdhelp") else { return };
        let mut listed: BTreeSet<String> = help.lines().filter_map(listed_name).collect();
        assert!(listed.len() > 150, "{help}");
        let of_jobs = listed.clone();
        let engines = ask("--enghelp").expect("it has started once");
        for engine in engines.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()) {
            let help = ask(&format!("--enghelp={engine}")).expect("it has started once");
            listed.extend(help.lines().filter_map(listed_name));
        }
        let undecided: Vec<&String> = listed.iter().filter(|name| find(name).is_none()).collect();
        assert!(undecided.is_empty(), "no decision on {undecided:?}");
        // Their aliases are options too; fio starts anew for each, so only those that matter are asked for.
        let matters = |option: &&FioOption| option.rule != OptionRule::Taken && of_jobs.contains(option.name);
        for option in OPTIONS.iter().filter(matters) {
            let help = ask(&format!("--cmdhelp={}", option.name)).expect("it has started once");
            let alias = help.lines().find_map(|line| line.trim().strip_prefix("alias: "));
            if let Some(alias) = alias {
                assert!(option.aliases.contains(&alias), "{} is also called {alias}", option.name);
            }
        }
    }

    /// Run with UPDATE_DOCS=1 to write it again, and then `scripts/render-tables --write` for the page.
    #[test]
    fn options_data_match_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/data/fio-options.json");
        let expected = options_data();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &expected).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(
            written == expected,
            "docs/data/fio-options.json is out of date: UPDATE_DOCS=1 cargo test writes it"
        );
    }

    /// As `scripts/data_tables.py` has it: one row a line.
    fn options_data() -> String {
        let mut counts: Vec<(String, usize)> = Vec::new();
        let mut options = Vec::new();
        for option in OPTIONS {
            let rule = describe_rule(option.rule);
            match counts.iter_mut().find(|(counted, _)| *counted == rule) {
                Some((_, count)) => *count += 1,
                None => counts.push((rule.clone(), 1)),
            }
            let names: Vec<String> =
                std::iter::once(&option.name).chain(option.aliases).map(|name| quote(name)).collect();
            let reason = if option.reason.is_empty() { "null".to_owned() } else { quote(option.reason) };
            let (names, rule) = (names.join(", "), quote(&rule));
            options.push(format!(r#"{{"options": [{names}], "rule": {rule}, "reason": {reason}}}"#));
        }
        let rules = counts.iter().map(|(rule, count)| {
            let rule = quote(rule);
            format!(r#"{{"rule": {rule}, "counted_options": {count}}}"#)
        });
        let rule_columns = [
            r#"{"key": "rule", "heading": "what Underlay does", "kind": "text"}"#,
            r#"{"key": "counted_options", "heading": "options", "kind": "integer"}"#,
        ];
        let option_columns = [
            r#"{"key": "options", "heading": "option", "kind": "codes"}"#,
            r#"{"key": "rule", "heading": "what Underlay does", "kind": "text"}"#,
            r#"{"key": "reason", "heading": "reason", "kind": "text", "optional": true}"#,
        ];
        let tables = [
            table("rules", &rule_columns, &rules.collect::<Vec<_>>()),
            table("options", &option_columns, &options),
        ];
        let head = r#"  "head": {
    "fio": "fio-3.33"
  }"#;
        format!("{{\n{head},\n  \"tables\": {{\n{}\n  }}\n}}\n", tables.join(",\n"))
    }

    fn table(name: &str, columns: &[&str], rows: &[String]) -> String {
        let (columns, rows) = (columns.join(",\n        "), rows.join(",\n        "));
        let list = |key: &str, lines: &str| format!("      \"{key}\": [\n        {lines}\n      ]");
        format!("    \"{name}\": {{\n{},\n{}\n    }}", list("columns", &columns), list("rows", &rows))
    }

    fn quote(text: &str) -> String {
        serde_json::to_string(text).unwrap()
    }

    fn describe_rule(rule: OptionRule) -> String {
        match rule {
            OptionRule::Taken => "taken as it is".to_owned(),
            OptionRule::Duration(TimeUnit::Seconds) => {
                "**multiplied** by the factor; seconds without a unit".to_owned()
            }
            OptionRule::Duration(TimeUnit::Microseconds) => {
                "**multiplied** by the factor; µs without a unit".to_owned()
            }
            OptionRule::Duration(TimeUnit::PlainMilliseconds) => {
                "**multiplied** by the factor; milliseconds".to_owned()
            }
            OptionRule::Duration(TimeUnit::PlainMicroseconds) => {
                "**multiplied** by the factor; µs".to_owned()
            }
            OptionRule::Rate(RateUnit::Bytes) => "**divided** by the factor; bytes/s".to_owned(),
            OptionRule::Rate(RateUnit::Requests) => "**divided** by the factor; requests/s".to_owned(),
            OptionRule::Files => "files below `{data}`, `{wal}` or `{temp}`, or `{device}`".to_owned(),
            OptionRule::Directories => "`{data}`, `{wal}` or `{temp}`, or a directory below".to_owned(),
            OptionRule::NamePart => "may not lead out of the directory".to_owned(),
            OptionRule::Log => "a file below `{logs}` or `{scratch}`".to_owned(),
            OptionRule::Memory => "a file only below `{logs}` or `{scratch}`".to_owned(),
            OptionRule::SteadyState => "a share only, as in `iops:2%`".to_owned(),
            OptionRule::Order => "refused behind another section; the first one may have it".to_owned(),
            OptionRule::Number { least, most } => number_in_words(least, most),
            OptionRule::Only(values) => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                format!("only {}", values.join(", "))
            }
            OptionRule::Refused => "**refused**".to_owned(),
        }
    }

    fn listed_name(line: &str) -> Option<String> {
        let (name, _) = line.split_once(':')?;
        let name = name.trim();
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        is_name.then(|| name.to_owned())
    }
}
