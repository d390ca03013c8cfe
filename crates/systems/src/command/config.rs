//! The commands of a system, and what else a study says of it.

use std::collections::BTreeMap;
use std::time::Duration;

use underlay_config::{closest, units};

use super::placeholders;
use crate::setting::{
    CustomSetting, IntegerSetting, OptionalSetting, SettingMistakes, TextSetting, settings,
};

/// Below these, ports need a right that unprivileged users lack.
const FIRST_PORT: u64 = 1024;
const LAST_PORT: u64 = 65535;

/// A setting that no system with commands has.
const COMMAND: OptionalSetting<TextSetting> = OptionalSetting(TextSetting(read_command));
const USER: OptionalSetting<TextSetting> = OptionalSetting(TextSetting(read_user));
const SCRIPT: OptionalSetting<TextSetting> = OptionalSetting(TextSetting(read_script));
const LIMIT: CustomSetting<Duration> =
    CustomSetting { read: read_limit, show: |limit| format!("{} s", limit.as_secs_f64()) };

settings! {
    /// How a program is run.
    #[derive(Clone, Debug, PartialEq)]
    pub(super) struct CommandConfig {
        "version" => version: Option<String> = None, COMMAND, "a command that prints the program's version, for the record";
        "prepare" => prepare: Option<String> = None, COMMAND, "a command that makes what an empty storage lacks, once";
        "start" => start: Option<String> = None, COMMAND, "a command that is the program, or that starts it and ends";
        "ready" => ready: Option<String> = None, COMMAND, "a command that succeeds once the program takes requests; it is tried again and again";
        "load" => load: Option<String> = None, COMMAND, "a command that puts the workload's data there, which cells then begin with";
        "settle" => settle: Option<String> = None, COMMAND, "a command that leaves no work behind after loading";
        "figures" => figures: Option<String> = None, COMMAND, "a command that prints the program's own running totals, a name and a number a line";
        "stop" => stop: Option<String> = None, COMMAND, "a command that shuts the program down; without it, SIGTERM does";
        "script" => script: Option<String> = None, SCRIPT, "a script, beginning with #!, that commands run as {script}";
        "user" => user: Option<String> = None, USER, "the Unix user that all commands run as; by default yours";
        "port" => port: u64 = 7000, IntegerSetting(FIRST_PORT..=LAST_PORT), "the TCP port for {port}: 7000";
        "wal_directory" => wal_directory: u64 = 1, IntegerSetting(1..=1024),
            "which of the storage's directories holds {wal}, where no role does: 1";
        "limit" => limit: Duration = Duration::from_secs(600), LIMIT, "how long each command may take, by this machine's clock: 10 min";
    }
}

impl CommandConfig {
    /// The settings, or every mistake in them.
    pub(super) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: u64,
    ) -> Result<CommandConfig, SettingMistakes> {
        let (config, mut mistakes) = CommandConfig::read(values, budget_bytes);
        if config.start.is_none() && (config.ready.is_some() || config.stop.is_some()) {
            let key = if config.ready.is_some() { "ready" } else { "stop" };
            mistakes.push((key.to_owned(), "expected `start` beside it: without it nothing runs".to_owned()));
        }
        let has_script = |(_, text): &(&String, &String)| placeholders::has(text, "script");
        if config.script.is_none()
            && let Some((key, _)) = values.iter().find(has_script)
        {
            mistakes
                .push((key.clone(), "expected a `script` beside it, which {script} stands for".to_owned()));
        }
        // The job is the workload's, and there may be several of those.
        let has_job = |(_, text): &(&String, &String)| placeholders::has(text, "job");
        if let Some((key, _)) = values.iter().filter(|(key, _)| *key != "script").find(has_job) {
            let problem = "{job} is the file of a workload's `job`, which only its `run` has";
            mistakes.push((key.clone(), problem.to_owned()));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// Every setting with its value in force. A script is shown by its length: the study has its text.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        applied.retain(|_, value| value != "none");
        if let Some(script) = &self.script {
            applied.insert("script".to_owned(), format!("{} lines", script.lines().count()));
        }
        applied
    }
}

fn read_command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("expected a command for the shell".to_owned());
    }
    if text.contains('\0') {
        return Err("expected a command without a zero byte".to_owned());
    }
    match placeholders::unknown(text) {
        None => Ok(text.to_owned()),
        Some(word) => Err(unknown_placeholder(word)),
    }
}

/// The message on a word between braces that is no placeholder.
pub(super) fn unknown_placeholder(word: &str) -> String {
    let meant = closest(word, placeholders::names()).map(|name| format!("; did you mean {{{name}}}?"));
    format!(
        "{{{word}}} is no placeholder{}: expected one of {}; write {{{{{word}}}}} where the braces are the command's own",
        meant.unwrap_or_default(),
        placeholders::names().collect::<Vec<_>>().join(", ")
    )
}

fn read_script(text: &str) -> Result<String, String> {
    match text.starts_with("#!/") && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => {
            Err("expected the text of a script, whose first line names its interpreter: #!/bin/sh".to_owned())
        }
    }
}

fn read_user(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match !text.is_empty() && text.len() <= 32 && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected the name of a Unix user".to_owned()),
    }
}

fn read_limit(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(limit) if limit > Duration::ZERO && limit <= Duration::from_secs(24 * 3600) => Ok(limit),
        Ok(_) => Err("expected more than zero and at most a day".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(pairs: &[(&str, &str)]) -> Result<CommandConfig, SettingMistakes> {
        let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        CommandConfig::resolve(&values, 1 << 30)
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        let mistake = |key: &str, value: &str| resolve(&[(key, value)]).unwrap_err().remove(0);
        assert!(mistake("start", "postgres -p {prot}").1.contains("did you mean {port}?"));
        assert!(mistake("start", " ").1.contains("a command"));
        assert!(mistake("script", "echo").1.contains("#!/bin/sh"));
        assert!(mistake("user", "a b").1.contains("Unix user"));
        assert!(mistake("limit", "10").1.contains("unit"), "{:?}", mistake("limit", "10"));
        assert!(mistake("stop", "true").1.contains("`start`"));
        assert!(mistake("port", "80").1.contains("1024"));
        assert!(mistake("load", "fill -P {job}").1.contains("`run`"));
        assert!(mistake("load", "{script} load").1.contains("a `script`"));
        let config =
            resolve(&[("start", "sleep 9"), ("limit", "5 s"), ("script", "#!/bin/sh\ntrue")]).unwrap();
        assert_eq!((config.limit, config.applied()["script"].as_str()), (Duration::from_secs(5), "2 lines"));
        assert!(!config.applied().contains_key("stop"));
    }
}
