//! fio on the command line of a study's own command: Underlay does not change what a shell reads, so it says what it would have changed.

use super::options::{self, Rule};
use super::places;
use super::slow_motion::is_on_this_clock;

/// What is doubtful about an option on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// `--rate_iops=500`
    pub word: String,
    pub problem: String,
    pub advice: String,
    /// It matters in slow motion only.
    pub is_of_time: bool,
}

/// Variables that a command has for the placeholders of this machine's clock.
const CLOCK_VARIABLES: [&str; 3] = ["UNDERLAY_TIME", "UNDERLAY_DURATION_S", "UNDERLAY_WARMUP_S"];

/// What is doubtful about the options that a command gives to fio.
pub fn doubts(command: &str) -> Vec<Doubt> {
    let words = words(command);
    let mut found = Vec::new();
    let mut is_fio = false;
    let mut index = 0;
    while let Some(word) = words.get(index) {
        index += 1;
        let Word::Text(word) = word else {
            is_fio = false;
            continue;
        };
        if word.rsplit('/').next() == Some("fio") {
            is_fio = true;
            continue;
        }
        let Some(told) = word.strip_prefix("--").filter(|_| is_fio) else { continue };
        let (key, value) = match told.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None => match words.get(index) {
                Some(Word::Text(next)) if !next.starts_with('-') => (told, next.clone()),
                _ => (told, String::new()),
            },
        };
        let shown: String =
            if word.contains('=') || value.is_empty() { word.clone() } else { format!("{word} {value}") };
        let is_of_time =
            options::find(key).is_some_and(|option| matches!(option.rule, Rule::Rate(_) | Rule::Duration(_)));
        found.extend(doubt(key, &value).map(|(problem, advice)| Doubt {
            word: shown,
            problem,
            advice,
            is_of_time,
        }));
    }
    found
}

fn doubt(key: &str, value: &str) -> Option<(String, String)> {
    let is_converted = is_on_this_clock(value) || CLOCK_VARIABLES.iter().any(|name| value.contains(name));
    let rule = match key {
        "status-interval" => return None,
        key => options::find(key)?.rule,
    };
    match rule {
        Rule::Rate(_) if !is_converted => Some((
            "counts by this machine's clock: in slow motion the modelled storage gets a multiple of it"
                .to_owned(),
            format!(
                "divide it by {{time}}, as in --{key}=$((500 / {{time}})), or use a workload of `kind = \"fio\"`"
            ),
        )),
        Rule::Duration(_) if !is_converted && value != "0" => Some((
            "counts by this machine's clock, which slow motion does not change".to_owned(),
            match key {
                "runtime" | "timeout" => format!("write --{key}={{duration_s}}"),
                "ramp_time" => "write --ramp_time={warmup_s}".to_owned(),
                _ => format!("multiply it by {{time}}, as in --{key}=$((10 * {{time}}))ms"),
            },
        )),
        Rule::Files if !value.contains('$') => places::check_files(value, true)
            .err()
            .map(|(problem, _)| (problem, "name files below {data}, or {device}".to_owned())),
        Rule::Directories if !value.contains('$') => places::check_directories(value)
            .err()
            .map(|(problem, _)| (problem, "name {data}, or a directory below it".to_owned())),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Text(String),
    /// What ends a command: `;`, `&&`, `|`, a new line.
    End,
}

/// The words of a shell's text, near enough to find options: quotes are taken off, and `$(...)` stays in one piece.
fn words(command: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let (mut quote, mut depth) = (None::<char>, 0u32);
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        let finish =
            |word: &mut Option<String>, words: &mut Vec<Word>| words.extend(word.take().map(Word::Text));
        match (letter, quote) {
            ('\\', None | Some('"')) => {
                if let Some(next) = letters.next().filter(|next| *next != '\n') {
                    word.get_or_insert_default().push(next);
                }
            }
            (letter, Some(end)) if letter == end => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('(', None) if depth > 0 || word.as_ref().is_some_and(|word| word.ends_with('$')) => {
                depth += 1;
                word.get_or_insert_default().push(letter);
            }
            (')', None) if depth > 0 => {
                depth -= 1;
                word.get_or_insert_default().push(letter);
            }
            (letter, None) if depth > 0 => word.get_or_insert_default().push(letter),
            (';' | '&' | '|' | '\n' | '(' | ')', None) => {
                finish(&mut word, &mut words);
                words.push(Word::End);
            }
            (letter, None) if letter.is_whitespace() => finish(&mut word, &mut words),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word.map(Word::Text));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: &str) -> Vec<String> {
        doubts(command).into_iter().map(|doubt| doubt.word).collect()
    }

    #[test]
    fn options_of_fios_command_line_that_count_by_this_machines_clock_are_found() {
        let command = "cd {scratch} && fio --name=t --filename={data}/f --rate_iops=500 --thinktime 10ms --iodepth=4 | cat";
        assert_eq!(told(command), ["--rate_iops=500", "--thinktime 10ms"]);
        assert_eq!(told("/usr/bin/fio --name=t --runtime='30'\necho --rate=5"), ["--runtime=30"]);
        for fine in [
            "fio --runtime={duration_s} --ramp_time={warmup_s} --rate_iops=$((500 / {time}))",
            "fio --rate_iops=$(( 500 / $UNDERLAY_TIME )) --filename={data}/f",
            "pgbench --rate=500",
            "fio; other --rate=500",
            "fio --startdelay=0 --ramp_time=0 --unknown=1 --filename=$DIRECTORY/f",
            "",
            "'",
            "fio --",
        ] {
            assert_eq!(told(fine), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(
            told("fio --filename=/dev/sda --directory=/tmp"),
            ["--filename=/dev/sda", "--directory=/tmp"]
        );
    }
}
