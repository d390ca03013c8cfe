//! fio in a study's own commands: Underlay does not change what a shell reads, so it says what it would have changed.

use std::ops::Range;

use super::check::mistakes;
use super::job_file::{JobFile, JobOption};
use super::options::{self, FioOption, OptionRule};
use super::places;
use super::slow_motion::{is_on_this_clock, unreadable};
use crate::benchmark::shell_text::ShellScript;
use crate::command::placeholders;

/// A doubt about fio in a command or in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FioDoubt {
    pub message: String,
    pub advice: String,
    /// It matters in slow motion only.
    pub is_of_time: bool,
}

/// Variables that a command has for the placeholders of this machine's clock.
const CLOCK_VARIABLES: [&str; 3] = ["UNDERLAY_TIME", "UNDERLAY_DURATION_S", "UNDERLAY_WARMUP_S"];
const JOB_VARIABLE: &str = "UNDERLAY_JOB";
/// Options of jobs that count by this machine's clock in a way that no factor mends.
const OTHER_CLOCKS: [&str; 3] = ["read_iolog", "thinkcycles", "startdelay"];
/// Options without a value in the word behind them.
const FLAGS: [&str; 15] = [
    "minimal",
    "append-terse",
    "parse-only",
    "merge-blktrace-only",
    "bandwidth-log",
    "readonly",
    "warnings-fatal",
    "version",
    "time_based",
    "thread",
    "stonewall",
    "group_reporting",
    "norandommap",
    "new_group",
    "exitall",
];
/// fio's own options that begin like those of jobs, and have nothing to do with what is measured.
const OWN_OPTIONS: [&str; 5] = ["status-interval", "eta", "eta-newline", "eta-interval", "section"];
/// Programs that run what they read, or what is in a file.
const SHELLS: [&str; 11] =
    ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "source", ".", "eval", "busybox"];
/// Programs that put further words behind a command.
const ADDS_WORDS: [&str; 2] = ["xargs", "parallel"];
/// Programs that run none of their words.
const RUNS_NOTHING: [&str; 17] = [
    "echo", "printf", "grep", "which", "type", "hash", "pgrep", "pkill", "killall", "cd", "mkdir", "rm",
    "ls", "cat", "tee", "cp", "mv",
];
/// Texts in texts are looked into so deep: `sh -c "bash -c '...'"`.
const MAX_DEPTH: usize = 4;

/// Doubts about fio in a command, or in a script.
pub fn doubts(command: &str) -> Vec<FioDoubt> {
    let judge = CommandJudge::parse(command);
    let mut found = judge.doubts;
    if judge.is_unsure {
        found.push(FioDoubt {
            message: "fio runs from another text or with words that only the shell knows, and can't be judged: some of it may count by this machine's clock".to_owned(),
            advice: "write its options on the command line itself, or use a workload of `kind = \"fio\"`".to_owned(),
            is_of_time: true,
        });
    }
    found
}

/// Whether a command may run fio.
pub fn runs_fio(command: &str) -> bool {
    let judge = CommandJudge::parse(command);
    judge.runs_fio || judge.is_unsure
}

/// Doubts about the job that a command gives to fio, each with its bytes of the job's text.
pub fn doubts_of_job(job: &str) -> Vec<(Range<usize>, FioDoubt)> {
    let file = JobFile::parse(job);
    let settings = file.sections.iter().flat_map(|section| &section.settings);
    let mut found: Vec<(Range<usize>, FioDoubt)> =
        settings.filter_map(|setting| Some((setting.span.clone(), clock_doubt(setting)?))).collect();
    for mistake in mistakes(job, None) {
        if found.iter().all(|(span, _)| *span != mistake.span) {
            let doubt = FioDoubt { message: mistake.message, advice: mistake.expected, is_of_time: false };
            found.push((mistake.span, doubt));
        }
    }
    found.sort_by_key(|(span, _)| span.start);
    found
}

/// The doubt about a job's setting that slow motion would have changed.
fn clock_doubt(setting: &JobOption) -> Option<FioDoubt> {
    let option = options::find(&setting.key)?;
    let (problem, advice) = match option.rule {
        OptionRule::SteadyState => {
            let mistake = unreadable(setting, option.rule)?;
            return Some(FioDoubt { message: mistake.message, advice: mistake.expected, is_of_time: true });
        }
        _ => doubt(option, setting.text(), |key, expression| format!("{key}=({expression})"))?,
    };
    let written = match &setting.value {
        Some(value) => format!("{}={value}", setting.key),
        None => setting.key.clone(),
    };
    let is_of_time = is_of_time(option);
    is_of_time.then(|| FioDoubt { message: format!("fio's `{written}` {problem}"), advice, is_of_time })
}

fn is_of_time(option: &FioOption) -> bool {
    matches!(option.rule, OptionRule::Rate(_) | OptionRule::Duration(_) | OptionRule::SteadyState)
        || OTHER_CLOCKS.contains(&option.name)
}

/// The doubt about an option's value, and the better value. `calculated` writes an option whose value is calculated.
fn doubt(
    option: &FioOption,
    value: &str,
    calculated: impl Fn(&str, &str) -> String,
) -> Option<(String, String)> {
    let is_converted = is_on_this_clock(value) || CLOCK_VARIABLES.iter().any(|name| value.contains(name));
    let key = option.name;
    match option.rule {
        OptionRule::Rate(_) if !is_converted => Some((
            "counts by this machine's clock: in slow motion the modelled storage gets a multiple of it"
                .to_owned(),
            format!(
                "divide it by {{time}}, as in {}, or use a workload of `kind = \"fio\"`",
                calculated(key, "500 / {time}")
            ),
        )),
        OptionRule::Duration(_) if !is_converted && value != "0" => Some((
            "counts by this machine's clock, which slow motion does not change".to_owned(),
            match key {
                "runtime" => "write runtime={duration_s}".to_owned(),
                "ramp_time" => "write ramp_time={warmup_s}".to_owned(),
                _ => format!("multiply it by {{time}}, as in {}", calculated(key, "10 * {time}")),
            },
        )),
        // A share of the mean is the same by every clock. A slope, or a plain number, is one of each second.
        OptionRule::SteadyState if !is_converted && (value.contains("slope") || !value.ends_with('%')) => {
            Some((
                "counts by this machine's clock, which slow motion does not change".to_owned(),
                "give a share, as in iops:2%".to_owned(),
            ))
        }
        OptionRule::Only(values)
            if OTHER_CLOCKS.contains(&key) && !is_converted && !values.contains(&value) =>
        {
            Some((format!("counts by this machine's clock: {}", option.reason), "leave it out".to_owned()))
        }
        OptionRule::Refused if OTHER_CLOCKS.contains(&key) => {
            Some((format!("counts by this machine's clock: {}", option.reason), "leave it out".to_owned()))
        }
        // What a variable will name is known to the shell alone.
        OptionRule::Files if !value.contains('$') => places::check_files(value, true)
            .err()
            .map(|(problem, _)| (problem, "name files below {data}, or {device}".to_owned())),
        OptionRule::Directories if !value.contains('$') => places::check_directories(value)
            .err()
            .map(|(problem, _)| (problem, "name {data}, or a directory below it".to_owned())),
        _ => None,
    }
}

/// The option of a job that fio takes this word for: its command line has the beginnings of names, too.
fn find_option(key: &str) -> Option<&'static FioOption> {
    let is_own = OWN_OPTIONS.contains(&key) || FLAGS.contains(&key);
    if is_own || key.is_empty() {
        return None;
    }
    let begun = || options::names().filter(|name| name.starts_with(key)).filter_map(options::find);
    // If there are several, fio refuses the command: the message names the one that matters.
    options::find(key).or_else(|| begun().find(|option| is_of_time(option))).or_else(|| begun().next())
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

/// The value of `NAME=value`.
fn assigned(word: &str) -> Option<&str> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some(value)
}

/// Whether a text in any language has the word `fio` in the place of a program.
fn mentions_fio(text: &str) -> bool {
    let may_precede = |c: char| c.is_whitespace() || "/'\"`(;|&[{=,!".contains(c);
    let may_follow = |c: char| c.is_whitespace() || "'\"`);|&]},".contains(c);
    text.match_indices("fio").any(|(place, word)| {
        text[..place].chars().next_back().is_none_or(may_precede)
            && text[place + word.len()..].chars().next().is_none_or(may_follow)
    })
}

/// Whether a text has a section, so that it may be a job file.
fn is_job(text: &str) -> bool {
    JobFile::parse(text).sections.iter().any(|section| !section.settings.is_empty())
}

fn has_known_options_only(job: &str) -> bool {
    let file = JobFile::parse(job);
    let mut settings = file.sections.iter().flat_map(|section| &section.settings);
    settings.all(|setting| options::find(&setting.key).is_some())
}

fn names_job(word: &str) -> bool {
    placeholders::has(word, "job") || word.contains(JOB_VARIABLE)
}

/// The findings in a command and in the texts in it.
#[derive(Default)]
struct CommandJudge {
    doubts: Vec<FioDoubt>,
    runs_fio: bool,
    /// fio may run with options that nobody sees.
    is_unsure: bool,
}

impl CommandJudge {
    fn parse(text: &str) -> CommandJudge {
        let mut judge = CommandJudge::default();
        judge.look_into(text, 0);
        let is_comment = |line: &&str| line.trim_start().starts_with('#');
        // In another language than a shell's.
        let mut lines = text.lines().filter(|line| !is_comment(line));
        judge.is_unsure = judge.is_unsure || (!judge.runs_fio && lines.any(calls_fio));
        judge
    }

    fn look_into(&mut self, text: &str, depth: usize) {
        if depth > MAX_DEPTH {
            self.is_unsure = true;
            return;
        }
        let script = ShellScript::read(text);
        self.is_unsure = self.is_unsure || (script.is_too_deep && mentions_fio(text));
        let feeds_a_shell = script.commands.iter().any(|command| {
            let mut words = command.words.iter().map(|word| base_name(word));
            words.any(|word| SHELLS.contains(&word) || ADDS_WORDS.contains(&word))
        });
        let has_job = names_job(text) || script.documents.iter().any(|document| is_job(document));
        for command in &script.commands {
            let first = command.words.first().map_or("", |word| base_name(word));
            if RUNS_NOTHING.contains(&first) && !feeds_a_shell {
                continue;
            }
            self.judge_words(&command.words, has_job);
            for word in &command.words {
                self.judge_text_in(word, depth);
            }
        }
        for document in &script.documents {
            if is_job(document) {
                // Other programs have sections in their files as well.
                let is_for_fio = has_known_options_only(document);
                let found = doubts_of_job(document).into_iter().map(|(_, doubt)| doubt);
                self.doubts.extend(found.filter(|doubt| is_for_fio || doubt.is_of_time));
            } else if mentions_fio(document) {
                self.is_unsure = true;
                self.look_into(document, depth + 1);
            }
        }
    }

    /// `sh -c 'fio ...'`, `RUN="fio ..."`, `FIO=/usr/bin/fio`: a word that runs fio elsewhere.
    fn judge_text_in(&mut self, word: &str, depth: usize) {
        let text = assigned(word).unwrap_or(word);
        let is_substitution = text.starts_with("$(") || text.starts_with('`');
        if text.contains(|c: char| c.is_whitespace() || c == ';') && mentions_fio(text) && !is_substitution {
            self.is_unsure = true;
            self.look_into(text, depth + 1);
        } else if text.len() < word.len() && base_name(text) == "fio" {
            self.is_unsure = true;
        }
    }

    /// The words of a command: `fio` begins its options, wherever it stands.
    fn judge_words(&mut self, words: &[String], has_job: bool) {
        let is_program = |word: &str| {
            let is_found = (word.starts_with("$(") || word.starts_with('`')) && mentions_fio(word);
            (base_name(word) == "fio" && assigned(word).is_none() && !word.starts_with('-')) || is_found
        };
        let Some(begin) = words.iter().position(|word| is_program(word)) else { return };
        self.runs_fio = true;
        self.is_unsure =
            self.is_unsure || words[..begin].iter().any(|word| ADDS_WORDS.contains(&base_name(word)));
        let mut index = begin + 1;
        while let Some(word) = words.get(index) {
            index += 1;
            // fio takes one dash for two.
            let option_text = word
                .strip_prefix("--")
                .or_else(|| word.strip_prefix('-'))
                .filter(|option_text| !option_text.is_empty());
            let Some(option_text) = option_text else {
                self.judge_job_file(word, has_job);
                continue;
            };
            let (key, value) = match option_text.split_once('=') {
                Some((key, value)) => (key, value.to_owned()),
                None => match words.get(index).filter(|_| !FLAGS.contains(&option_text)) {
                    Some(next) if !next.starts_with('-') => {
                        index += 1;
                        (option_text, next.clone())
                    }
                    _ => (option_text, String::new()),
                },
            };
            let is_whole = word.contains('=') || value.is_empty();
            let shown = if is_whole { word.clone() } else { format!("{word} {value}") };
            let Some(option) = find_option(key) else { continue };
            let calculated = |key: &str, expression: &str| format!("--{key}=$(({expression}))");
            self.doubts.extend(doubt(option, &value, calculated).map(|(problem, advice)| FioDoubt {
                message: format!("fio's `{shown}` {problem}"),
                advice,
                is_of_time: is_of_time(option),
            }));
        }
    }

    /// A word of fio's that is no option.
    fn judge_job_file(&mut self, word: &str, has_job: bool) {
        let is_input = matches!(word, "-" | "/dev/stdin");
        if word == "--" || names_job(word) || (is_input && has_job) {
            return;
        }
        self.doubts.push(FioDoubt {
            message: format!(
                "fio takes options from `{}`, which Underlay does not see, so they can't be judged: some may count by this machine's clock",
                super::mistake::shortened(word)
            ),
            advice: "give the text of the job as `job` and name {job}, or use a workload of `kind = \"fio\"`".to_owned(),
            is_of_time: true,
        });
    }
}

/// `["fio", "--rate=5"]`, `system("fio ...")`: in languages other than a shell's.
fn calls_fio(line: &str) -> bool {
    line.match_indices(['"', '\'']).any(|(place, quote)| {
        let (before, inside) = (line[..place].trim_end(), &line[place + quote.len()..]);
        let first = inside.split([' ', '"', '\'']).next().unwrap_or_default();
        before.ends_with(['(', '[', ',', '=']) && base_name(first) == "fio"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &str) -> Vec<String> {
        doubts(command).into_iter().map(|doubt| doubt.message).collect()
    }

    /// The options that are doubted, and whether something can't be judged.
    fn doubted(command: &str) -> (Vec<String>, bool) {
        let messages = told(command);
        let word = |message: &String| Some(message.strip_prefix("fio's `")?.split_once('`')?.0.to_owned());
        (
            messages.iter().filter_map(word).collect(),
            messages.iter().any(|message| message.contains("can't be judged")),
        )
    }

    #[test]
    fn clock_options_of_fio_command_line_are_found() {
        let command = "cd {scratch} && fio --name=t --filename={data}/f --rate_iops=500 --thinktime 10ms --iodepth=4 | cat";
        assert_eq!(doubted(command).0, ["--rate_iops=500", "--thinktime 10ms"]);
        assert_eq!(doubted("/usr/bin/fio --name=t --runtime='30'\necho --rate=5").0, ["--runtime=30"]);
        for fine in [
            "fio --runtime={duration_s} --ramp_time={warmup_s} --rate_iops=$((500 / {time}))",
            "fio --rate_iops=$(( 500 / $UNDERLAY_TIME )) --filename={data}/f",
            "pgbench --rate=500",
            "fio; other --rate=500",
            "fio --startdelay=0 --ramp_time=0 --unknown=1 --filename=$DIRECTORY/f",
            "fio --minimal {job} >{scratch}/fio.json 2>&1",
            "fio $UNDERLAY_JOB",
            "cat {job} | fio -",
            "fio --name=fio --status-interval=1 --output {scratch}/fio.json",
            "echo fio is done; which fio; echo 'fio has ended'",
            "# fio --rate_iops=500\npgbench",
            "",
            "'",
            "fio --",
        ] {
            assert_eq!(told(fine), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(
            doubted("fio --filename=/dev/sda --directory=/tmp").0,
            ["--filename=/dev/sda", "--directory=/tmp"]
        );
    }

    #[test]
    fn option_prefixes_and_single_dashes_parse_like_fio() {
        for (command, option) in [
            ("fio --rate_iop=500", "--rate_iop=500"),
            ("fio --runtim=30", "--runtim=30"),
            ("fio -rate_iops=500", "-rate_iops=500"),
            ("fio --timeout=30", "--timeout=30"),
            ("fio --ss=iops:100", "--ss=iops:100"),
            ("fio --startdelay=5", "--startdelay=5"),
            ("fio --filenam=/dev/sda", "--filenam=/dev/sda"),
        ] {
            assert_eq!(doubted(command), (vec![option.to_owned()], false), "{command}");
        }
    }

    #[test]
    fn fio_in_substitutions_is_judged() {
        for command in [
            "X=$(fio --rate_iops=500)",
            "X=`fio --rate_iops=500`; echo $X",
            "echo \"$(fio --rate_iops=500 | grep x)\"",
            "cat <(fio --rate_iops=500)",
            "$(which fio) --rate_iops=500",
            "`command -v fio` --rate_iops=500",
            "if true; then { exec nice -n 5 env A=b \"fio\" --rate_iops=500; }; fi",
            "time timeout 5 /usr/local/bin/fio --rate_iops=500",
        ] {
            assert_eq!(doubted(command).0, ["--rate_iops=500"], "{command}");
        }
    }

    #[test]
    fn embedded_fio_text_is_judged_where_possible() {
        for command in [
            "sh -c 'fio --rate_iops=500'",
            "bash -lc \"cd x; /usr/bin/fio --rate_iops=500\"",
            "eval \"fio --rate_iops=500\"",
            "RUN='fio --rate_iops=500'; $RUN",
            "sh <<END\nfio --rate_iops=500\nEND",
            "cat >x.sh <<'END'\nfio --rate_iops=500\nEND\n. ./x.sh",
            "echo 'fio --rate_iops=500' | sh",
            "sh -c \"bash -c 'fio --rate_iops=500'\"",
        ] {
            assert_eq!(doubted(command), (vec!["--rate_iops=500".to_owned()], true), "{command}");
        }
        for command in [
            "FIO=/usr/bin/fio; $FIO --rate_iops=500",
            "echo --rate_iops=500 | xargs fio",
            "OPTIONS=--rate_iops=500; fio $OPTIONS",
            "fio other.fio",
            "fio --minimal other.fio",
            "printf '[t]' | fio -",
            "run([\"/usr/bin/fio\", \"--rate_iops=500\"])",
            "python3 -c 'import os; os.system(\"fio --name=x\")'",
            "import subprocess\nsubprocess.run([\"fio\", \"--rate_iops=500\"])",
        ] {
            assert!(doubted(command).1 && runs_fio(command), "{command}: {:?}", told(command));
        }
        assert!(!runs_fio("pgbench --rate=5 # as fio does") && !runs_fio("cat fio.json fio/x"));
    }

    #[test]
    fn here_document_job_is_judged() {
        let found = doubted("fio - <<END\n[t]\nfilename={data}/f\nrate_iops=500\nEND\n");
        assert_eq!(found, (vec!["rate_iops=500".to_owned()], false));
    }

    #[test]
    fn job_of_fio_command_is_judged_by_option_table() {
        let job = "[t]\nfilename=/dev/sda\nrate_iops=100\nthinktime=5\nruntime={duration_s}\nss=iops:100\nrate=many\n";
        let found = doubts_of_job(job);
        let lines: Vec<(&str, bool)> =
            found.iter().map(|(span, doubt)| (&job[span.clone()], doubt.is_of_time)).collect();
        let expected = [
            ("filename=/dev/sda", false),
            ("rate_iops=100", true),
            ("thinktime=5", true),
            ("ss=iops:100", true),
            ("rate=many", true),
        ];
        assert_eq!(lines, expected);
        assert!(found[0].1.message.contains("not on the storage"), "{found:?}");
        assert!(found[1].1.advice.contains("rate_iops=(500 / {time})"), "{found:?}");
        assert!(doubts_of_job("[t]\nfilename={data}/f\nrate_iops=(500/{time})\n").is_empty());
    }
}
