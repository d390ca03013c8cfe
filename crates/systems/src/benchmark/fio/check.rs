//! Mistakes in a job before it runs: options that fio does not have or Underlay refuses, files outside of the storage,
//! and jobs that wait for each other.

use super::job_file::{FioJobSection, JobFile, JobOption, JobSection};
use super::job_names;
use super::mistake::{JobMistake, shortened};
use super::options::{self, OptionRule};
use super::places::{self, FilePlace};
use super::slow_motion;
use super::value::KiloBase;

/// All mistakes of a job file, whose placeholders are not filled in yet. With a `factor` of slow motion also those that
/// it makes.
pub fn mistakes(text: &str, factor: Option<f64>) -> Vec<JobMistake> {
    let file = JobFile::parse(text);
    let mut found = Vec::new();
    for stray in &file.strays {
        let (message, expected) = match stray.is_include {
            true => (
                "fio's `include` names another file, which Underlay does not read",
                "expected the options themselves here",
            ),
            false => (
                "a line before the first section of fio's job",
                "expected a section such as [reads] before it",
            ),
        };
        found.push(JobMistake::new(&stray.span, message, expected));
    }
    for (index, section) in file.sections.iter().enumerate() {
        // fio reads from the top, so only sections up to this one count.
        let directory = has_directory(&file.sections[..=index]);
        for setting in &section.settings {
            check_setting(setting, directory, &mut found);
        }
    }
    for job in file.jobs() {
        check_files(&job, &mut found);
        job_names::check(&job, &mut found);
        check_access(&job, &mut found);
    }
    check_order(&file, &mut found);
    if file.jobs().next().is_none() {
        let span = file.sections.last().map_or(0..0, |section| section.span.clone());
        found.push(JobMistake::new(
            &span,
            "fio's job has no section that runs",
            "expected a section such as [reads]",
        ));
    }
    // What slow motion would change is read as fio reads it, and that needs a sound job.
    if found.is_empty()
        && let Some(factor) = factor
        && let Err(mistake) = slow_motion::slowed(text, factor)
    {
        found.push(mistake);
    }
    found.sort_by_key(|mistake| mistake.span.start);
    found
}

/// Whether the last of these sections knows a directory, by itself or by a `[global]` one before it.
fn has_directory(sections: &[JobSection]) -> bool {
    let Some((last, before)) = sections.split_last() else { return false };
    let globals = before.iter().filter(|section| section.is_global);
    globals.chain([last]).flat_map(|section| &section.settings).any(|setting| setting.name() == "directory")
}

/// Keywords that fio replaces by values of this machine.
const KEYWORDS: [&str; 4] = ["${", "$pagesize", "$mb_memory", "$ncpus"];

fn check_setting(setting: &JobOption, has_directory: bool, found: &mut Vec<JobMistake>) {
    let Some(option) = options::find(&setting.key) else {
        let message =
            format!("fio has no option `{}`, or Underlay does not know it", shortened(&setting.key));
        let expected = match underlay_config::closest(&setting.key, options::names()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "expected an option of docs/fio-options.md".to_owned(),
        };
        found.push(JobMistake::new(&setting.span, message, expected));
        return;
    };
    let value = setting.text();
    // Before the rules: fio replaces these first, so no rule sees the value that fio gets.
    if let Some(keyword) = KEYWORDS.iter().find(|keyword| value.contains(**keyword)) {
        let word = if *keyword == "${" { "a variable of the environment" } else { keyword };
        let problem = format!("uses {word}, which differs from machine to machine");
        found.push(JobMistake::from_setting(
            setting,
            &problem,
            "expected a value, or a placeholder such as {cores}",
        ));
        return;
    }
    let refused =
        |problem: &str, expected: String| Some(JobMistake::from_setting(setting, problem, expected));
    let mistake = match option.rule {
        OptionRule::Taken | OptionRule::Order => None,
        OptionRule::Duration(_) | OptionRule::Rate(_) | OptionRule::SteadyState => {
            slow_motion::unreadable(setting, option.rule)
        }
        OptionRule::Files => places::check_files(value, has_directory)
            .err()
            .and_then(|(problem, expected)| refused(&problem, expected)),
        OptionRule::Directories => {
            places::check_directories(value).err().and_then(|(problem, expected)| refused(&problem, expected))
        }
        // `job_names` looks at the parts together.
        OptionRule::NamePart => None,
        OptionRule::Log => match setting.value.as_deref() {
            // As a switch the log has a name that fio makes of the job's.
            None | Some("0" | "1") => None,
            Some(value) => {
                places::check_log(value).err().and_then(|(problem, expected)| refused(&problem, expected))
            }
        },
        OptionRule::Memory => match value.split_once(':') {
            Some((_, path)) if path.trim().is_empty() => {
                refused("names no file", "expected a file below {scratch}, or `mem=mmap`".to_owned())
            }
            Some((_, path)) if places::check_log(path).is_err() => refused(
                "keeps buffers in a file of this host",
                "expected a file below {scratch}, or `mem=mmap`".to_owned(),
            ),
            _ => None,
        },
        OptionRule::Number { least, most } => {
            number_problem(setting.value.as_deref(), least, most).and_then(|problem| {
                refused(problem, format!("expected {}", options::number_in_words(least, most)))
            })
        }
        OptionRule::Only(values) if values.contains(&value) => None,
        OptionRule::Only(values) => refused(
            &format!("is refused: {}", option.reason),
            format!("expected one of {}", values.join(", ")),
        ),
        OptionRule::Refused => {
            refused(&format!("is refused: {}", option.reason), "expected a job without it".to_owned())
        }
    };
    found.extend(mistake);
}

/// The mistake in a whole number. Values that fio calculates, and those filled in later, are not known yet.
fn number_problem(value: Option<&str>, least: u64, most: u64) -> Option<&'static str> {
    let Some(value) = value else { return Some("has no number") };
    if value.contains(['{', '(']) || value.starts_with("0x") {
        return None;
    }
    match KiloBase::default().number(value) {
        Some(number) if (least..=most).contains(&number) => None,
        Some(_) => Some("is out of range"),
        None => Some("is no whole number"),
    }
}

/// Whether a job's requests go to the storage under test.
fn check_files(job: &FioJobSection<'_>, found: &mut Vec<JobMistake>) {
    let section = job.section();
    let named = |name: &'static str| job.settings().filter(move |setting| setting.name() == name);
    let files = named("filename").next_back();
    let directory = named("directory").next_back();
    // Of a wrong one there is a mistake already.
    let place_of = |setting: Option<&JobOption>| setting.and_then(|setting| places::place_of(setting.text()));
    let place = match (files, directory) {
        (_, Some(_)) => place_of(directory),
        (Some(_), None) => place_of(files),
        (None, None) => place_of(named("opendir").next_back()),
    };
    // With `nrfiles`, fio makes files beside those of `opendir`, where that finds none.
    let opens_found = named("opendir").next().is_some() && job.setting("nrfiles").is_none();
    let is_named = files.is_some() || opens_found;
    if !is_named && directory.is_none() {
        let message = format!(
            "fio's job [{}] names no file: fio would make one in its working directory, on this host's own disk",
            shortened(job.name())
        );
        found.push(JobMistake::new(
            &section.span,
            message,
            "expected `filename={data}/file`, `directory={data}` or `filename={device}` in it",
        ));
        return;
    }
    if place == Some(FilePlace::Host) {
        let setting =
            directory.or(files).unwrap_or_else(|| named("opendir").next_back().expect("it has a place"));
        found.push(JobMistake::from_setting(
            setting,
            "is on this host's own disk: requests there say nothing of the storage under test",
            "expected {data}, {wal}, {temp} or {device}",
        ));
    }
}

const ACCESS: [&str; 11] = [
    "read",
    "write",
    "trim",
    "randread",
    "randwrite",
    "randtrim",
    "rw",
    "readwrite",
    "randrw",
    "trimwrite",
    "randtrimwrite",
];

fn check_access(job: &FioJobSection<'_>, found: &mut Vec<JobMistake>) {
    let Some(setting) = job.setting("rw") else { return };
    if found.iter().any(|mistake| mistake.span == setting.span) {
        return;
    }
    // `randread:8` and `write:4k`: how many requests follow each other, or how much lies between them.
    let (word, distance) = match setting.text().split_once(':') {
        Some((word, distance)) => (word.trim(), Some(distance.trim())),
        None => (setting.text(), None),
    };
    if !ACCESS.contains(&word) {
        let expected = format!("expected one of {}", ACCESS.join(", "));
        found.push(JobMistake::from_setting(setting, "is no kind of access", expected));
    } else if distance
        .is_some_and(|text| !text.starts_with(|c: char| c.is_ascii_digit() || "-{(".contains(c)))
    {
        let expected = "expected a number behind the colon, as in randread:8";
        found.push(JobMistake::from_setting(setting, "has no number behind the colon", expected));
    }
}

/// Figures of jobs are added: so all must run at the same time.
fn check_order(file: &JobFile, found: &mut Vec<JobMistake>) {
    for (index, job) in file.jobs().enumerate() {
        let waits = |setting: &&JobOption| match setting.name() {
            // The first has nothing to wait for.
            "stonewall" | "wait_for" => index > 0 && setting.is_on(),
            _ => false,
        };
        for name in ["stonewall", "wait_for"] {
            let Some(setting) = job.setting(name).filter(waits) else { continue };
            if found.iter().any(|mistake| mistake.span == setting.span) {
                continue;
            }
            found.push(JobMistake::from_setting(
                setting,
                "makes jobs run one after another, but Underlay adds up their figures",
                "expected jobs that run at the same time; give each one a [workload.NAME] of its own",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let message_of = |mistake: JobMistake| {
            let line = text[..mistake.span.start].matches('\n').count() + 1;
            format!("{line}: {}: {}", mistake.message, mistake.expected)
        };
        mistakes(text, None).into_iter().map(message_of).collect()
    }

    fn only(text: &str) -> String {
        let mut all = told(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        all.remove(0)
    }

    #[test]
    fn job_naming_host_file_is_refused_with_line() {
        for (options, line, words) in [
            ("filename=/dev/sda", 2, "expected a file below {data}"),
            ("filename={data}/a:/dev/sda", 2, "`/dev/sda`"),
            ("filename={data}/../../etc/passwd", 2, "leaves its directory"),
            ("filename=relative", 2, "relative"),
            ("filename={data}x/file", 2, "expected a file below {data}"),
            ("filename={{data}}/file", 2, "expected a file below {data}"),
            ("filename=-", 2, "expected a file below {data}"),
            ("filename={scratch}/file", 2, "host's own disk"),
            ("filename={logs}/file", 2, "host's own disk"),
            ("filename=${HOME}/file", 2, "environment"),
            ("filename=$mb_memory", 2, "$mb_memory"),
            ("filename={device}/x", 2, "{device}"),
            ("directory=/tmp", 2, "expected a directory"),
            ("directory={data}:/tmp", 2, "`/tmp`"),
            ("directory={data}\nfilename=../x", 3, "leaves its directory"),
            ("directory={data}\nfilename_format=../$jobname", 3, "leaves its directory"),
            ("directory={data}\nname=../x", 3, "leaves its directory"),
            ("opendir=/etc", 2, "expected a directory"),
            ("rw=randread", 1, "names no file"),
            ("opendir={data}/empty\nnr_files=1", 1, "names no file"),
            ("directory={data}\nfilename_format=/etc/file", 3, "leaves its directory"),
            ("filename={data}/f\nread_iolog={data}/log", 3, "refused"),
            ("filename={data}/f\nreplay_redirect=/dev/sda", 3, "refused"),
            ("filename={data}/f\nexec_prerun=dd if=/dev/zero", 3, "refused"),
            ("filename={data}/f\nwrite_bw_log=/etc/log", 3, "expected a log below {logs}"),
            ("filename={data}/f\nwrite_lat_log={data}/log", 3, "expected a log below {logs}"),
            ("filename={data}/f\nwrite_iops_log=../log", 3, "expected a log below {logs}"),
            ("filename={data}/f\niomem=mmap:/etc/file", 3, "buffers"),
            ("filename={data}/f\nioengine=net", 3, "engine"),
            ("filename={data}/f\nioengine=external:/x.so", 3, "engine"),
            ("filename={data}/f\nprofile=tiobench", 3, "refused"),
            ("filename={data}/f\ninclude /etc/other.fio", 3, "include"),
        ] {
            let found = only(&format!("[t]\n{options}\n"));
            assert!(found.starts_with(&format!("{line}: ")) && found.contains(words), "{options}: {found}");
        }
        assert!(only("[../up]\ndirectory={data}\n").contains("leaves its directory"));
        assert!(only("[/dev/sda]\ndirectory={data}\n").contains("leaves its directory"));
        // Below [global] fio puts it into the working directory, before it knows the section's directory.
        assert!(
            told("[global]\nfilename=f\n[t]\ndirectory={data}\n").iter().any(|one| one.starts_with("2: "))
        );
        assert!(
            told("[global]\nfilename=/dev/sda\n[t]\nfilename={data}/f\n")
                .iter()
                .any(|one| one.starts_with("2: "))
        );
    }

    #[test]
    fn jobs_on_the_storage_are_taken() {
        for options in [
            "filename={data}/file",
            "filename = {data}/a:{data}/b/c",
            "filename={device}",
            "filename={device}:{device}",
            "filename={wal}/log",
            "directory={data}",
            "directory={data}/sub:{temp}",
            "directory={data}\nfilename=a:b/c",
            "directory={data}\nfilename_format=file.$jobnum",
            "opendir={data}",
            "filename={data}/f\nwrite_bw_log",
            "filename={data}/f\nwrite_bw_log={logs}/bw\nlog_avg_msec=500",
            "filename={data}/f\nmem=malloc",
            "filename={data}/f ; /dev/sda",
            "filename={data}/f\ncreate_only=0\nzonemode=none\nnice=0",
        ] {
            assert_eq!(told(&format!("[t]\n{options}\n")), Vec::<String>::new(), "{options}");
        }
        assert_eq!(told("[global]\ndirectory={data}\n[a]\nrw=read\n[b]\nfilename=x\n"), Vec::<String>::new());
    }

    #[test]
    fn unknown_fio_option_is_refused_by_name() {
        assert!(only("[t]\nfilename={data}/f\niodept=4\n").contains("did you mean `iodepth`?"));
        assert!(only("[t]\nfilename={data}/f\nrw=randreed\n").contains("no kind of access"));
        assert!(only("rw=read\n[t]\nfilename={data}/f\n").contains("before the first section"));
        assert!(only("[global]\nfilename={data}/f\n").contains("no section"));
        assert!(only("[t]\nfilename={data}/f\ncpus_allowed=0\n").contains("chooses the CPUs"));
    }

    #[test]
    fn numbers_that_fio_would_stumble_over_are_refused() {
        for (options, words) in [
            ("numjobs=0", "out of range"),
            ("numjobs=5000", "out of range"),
            ("numjobs=-1", "no whole number"),
            ("numjobs=two", "no whole number"),
            ("numjobs", "no number"),
            ("numjobs=", "no whole number"),
            ("iodepth=0", "out of range"),
            ("rwmixread=101", "out of range"),
            ("rw=randread,foo", "no kind of access"),
            ("rw=randread,randwrite", "no kind of access"),
            ("rw=randread:foo", "behind the colon"),
            ("rw=randread:", "behind the colon"),
            ("rw", "no kind of access"),
            ("mem=mmap:", "names no file"),
        ] {
            let found = only(&format!("[t]\nfilename={{data}}/f\n{options}\n"));
            assert!(found.starts_with("3: ") && found.contains(words), "{options}: {found}");
        }
        for options in [
            "numjobs=4",
            "numjobs={cores}",
            "iodepth=(2*{cores})",
            "iodepth=1k",
            "iodepth=0x10",
            "rwmixread=0",
            "rw=randread:8",
            "rw = write : 4k",
        ] {
            let text = format!("[t]\nfilename={{data}}/f\n{options}\n");
            assert_eq!(told(&text), Vec::<String>::new(), "{options}");
        }
    }

    #[test]
    fn stonewall_is_accepted_only_at_start() {
        let stonewall = "filename={data}/f\nstonewall\n";
        assert_eq!(told(&format!("[t]\n{stonewall}")), Vec::<String>::new());
        assert_eq!(
            told(&format!("[t]\n{stonewall}wait_for=t\nstartdelay=0s\n[u]\nfilename={{data}}/g\n")),
            Vec::<String>::new()
        );
        let two = only(&format!("[t]\nfilename={{data}}/g\n[u]\n{stonewall}"));
        assert!(two.starts_with("5: ") && two.contains("one after another"), "{two}");
        let global = only(&format!("[global]\n{stonewall}[t]\n[u]\n[v]\n"));
        assert!(global.starts_with("3: "), "{global}");
        for delay in ["5", "1ms", "0-5", "0.5"] {
            let refused = only(&format!("[t]\nfilename={{data}}/f\nstartdelay={delay}\n"));
            assert!(refused.starts_with("3: ") && refused.contains("begins later"), "{refused}");
        }
        assert!(
            only("[t]\nfilename={data}/f\n[u]\nfilename={data}/f\nwait_for_previous=1\n")
                .contains("one after another")
        );
        assert_eq!(
            told("[t]\nfilename={data}/f\n[u]\nfilename={data}/f\nstonewall=0\n"),
            Vec::<String>::new()
        );
    }
}
