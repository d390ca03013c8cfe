//! Names of jobs where fio makes them the names of files: of data without a `filename`, and of logs that have no name
//! of their own.

use std::ops::Range;

use super::job_file::{FioJobSection, JobOption};
use super::mistake::{JobMistake, shortened};
use super::options::{self, OptionRule};
use crate::command::placeholders;

/// Placeholders that become paths.
const PATHS: [&str; 8] = ["data", "device", "wal", "temp", "scratch", "logs", "script", "job"];

/// Whether the name of a job, or what it has for the names of its files, leads out of a directory.
pub(super) fn check(job: &FioJobSection<'_>, found: &mut Vec<JobMistake>) {
    let format = job.setting("filename_format");
    // A directory that `opendir` names may be empty: then fio makes files as without it, if `nrfiles` says so.
    let names_files = job.setting("filename").is_none();
    if let Some(format) = format.filter(|format| names_files && is_elsewhere(format.text())) {
        let expected = "expected a relative name without `..` and paths";
        found.push(leads_out(&format.span, format.text(), "a file", expected));
    }
    if !is_path(job.name()) {
        return;
    }
    let span = job.setting("name").map_or(&job.section().span, |setting| &setting.span);
    if names_files && format.is_none_or(|format| format.text().contains("$jobname")) {
        let expected = "expected a name without `/`, `..` and paths";
        found.push(leads_out(span, job.name(), "a file", expected));
    } else if let Some(log) = nameless_log(job) {
        let becomes = format!("the log of fio's `{}`", log.key);
        let expected =
            format!("expected a name without `/`, `..` and paths, or `{}={{logs}}/NAME`", log.name());
        found.push(leads_out(span, job.name(), &becomes, &expected));
    }
}

fn leads_out(span: &Range<usize>, name: &str, becomes: &str, expected: &str) -> JobMistake {
    let message = format!("`{}` becomes the name of {becomes}, and leaves its directory", shortened(name));
    JobMistake::new(span, message, expected)
}

/// Whether the name of a file leaves the directory that it is put below.
fn is_elsewhere(path: &str) -> bool {
    path.starts_with('/') || path.split('/').any(|part| part == "..") || has_path(path)
}

fn is_path(name: &str) -> bool {
    name.contains('/') || name == ".." || has_path(name)
}

fn has_path(text: &str) -> bool {
    PATHS.iter().any(|path| placeholders::has(text, path))
}

/// A log that fio names by the job.
fn nameless_log<'a>(job: &FioJobSection<'a>) -> Option<&'a JobOption> {
    let logs = options::OPTIONS.iter().filter(|option| option.rule == OptionRule::Log);
    let mut found = logs.filter_map(|option| job.setting(option.name));
    found.find(|setting| setting.value.as_deref().is_none_or(str::is_empty))
}

#[cfg(test)]
mod tests {
    use crate::benchmark::fio::mistakes;

    fn told(text: &str) -> Vec<String> {
        mistakes(text, None).into_iter().map(|mistake| mistake.message).collect()
    }

    #[test]
    fn section_name_forming_log_path_is_refused() {
        for log in ["write_bw_log", "write_iops_log=", "write_lat_log", "write_hist_log ="] {
            for name in ["/etc/evil", "../../evil", "..", "a/b", "{data}", "x{logs}", "{device}"] {
                let by_section = format!("[{name}]\nfilename={{data}}/f\n{log}\n");
                let by_option = format!("[t]\nfilename={{data}}/f\nname={name}\n{log}\n");
                let by_global = format!("[global]\n{log}\n[{name}]\nfilename={{data}}/f\n");
                for text in [by_section, by_option, by_global] {
                    let found = told(&text);
                    assert!(
                        found.len() == 1 && found[0].contains("becomes the name of the log"),
                        "{text}: {found:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn name_forming_no_path_may_be_anything() {
        for text in [
            "[4k/randread]\nfilename={data}/f\n",
            "[4k/randread]\nfilename={data}/f\nwrite_bw_log={logs}/reads\n",
            "[4k/randread]\ndirectory={data}\nfilename_format=f.$jobnum.$filenum\n",
            "[t]\nfilename={data}/f\nwrite_bw_log\n",
            "[reads-{cores}]\ndirectory={data}\nwrite_lat_log\n",
        ] {
            assert_eq!(told(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn name_forming_file_path_is_refused() {
        for text in [
            "[../up]\ndirectory={data}\n",
            "[..]\ndirectory={data}\n",
            "[{scratch}]\ndirectory={data}\n",
            "[../up]\ndirectory={data}\nfilename_format=$jobname.$jobnum\n",
            "[/etc/evil]\nopendir={data}/empty\n",
            "[t]\ndirectory={data}\nfilename_format=../$jobname\n",
            "[t]\nopendir={data}/empty\nfilename_format=/etc/evil\n",
            "[t]\ndirectory={data}\nfilename_format={scratch}/$jobname\n",
        ] {
            let found = told(text);
            assert!(found.len() == 1 && found[0].contains("becomes the name of a file"), "{text}: {found:?}");
        }
    }
}
