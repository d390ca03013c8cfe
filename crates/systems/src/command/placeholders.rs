//! `{data}` and the like in a command of the user's, and what stands for them.

use std::borrow::Cow;

use underlay_files::shell;

/// The placeholders of commands, each with its meaning.
pub const PLACEHOLDERS: [(&str, &str); 19] = [
    ("data", "the directory for its data, on the storage under test"),
    ("device", "the block device of a storage without a file system; several are separated by colons"),
    (
        "wal",
        "the directory of the role `wal`; without one, beside the data, or on the directory that `wal_directory` names",
    ),
    ("temp", "the directory of the role `temp`; without one, beside the data"),
    ("scratch", "a directory for sockets and configuration, not on the storage under test"),
    ("logs", "a directory for logs, which are kept beside the cell's record"),
    ("script", "the file that holds `script`"),
    ("job", "the file that holds the workload's job"),
    ("host", "the address of the loopback device"),
    ("port", "a TCP port for it"),
    ("user", "the Unix user that it runs as"),
    ("memory_bytes", "its memory budget on this machine"),
    ("memory_mib", "the same in MiB, rounded down"),
    ("cores", "the cores of the modelled machine; without [machine], those of this one"),
    ("time", "the factor of slow motion"),
    ("data_bytes", "the workload's `data` on this machine; 0 where it has none"),
    ("duration_s", "how long it is to be measured, in seconds of this machine's clock"),
    ("warmup_s", "how long it is to warm up before, likewise"),
    ("seed", "a number that is another one in each repetition"),
];

/// The names of all placeholders.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLACEHOLDERS.iter().map(|(name, _)| *name)
}

/// Values of placeholders by name.
pub(crate) type PlaceholderValues = Vec<(&'static str, String)>;

/// A part of a command.
enum CommandPart<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

/// The parts of a command. Braces that hold no plain word (`{print $1}`), that follow a `$`, or that are doubled, are
/// the shell's.
fn parts(command: &str) -> Vec<CommandPart<'_>> {
    let mut parts = Vec::new();
    let mut rest = command;
    let mut begun = 0;
    while let Some(open) = rest[begun..].find('{').map(|found| found + begun) {
        let after = &rest[open + 1..];
        let word = after.find('}').map(|close| &after[..close]);
        let is_word = |word: &&str| {
            !word.is_empty()
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                && word.starts_with(|c: char| c.is_ascii_lowercase())
        };
        let is_shells = rest[..open].ends_with('$');
        match word.filter(is_word).filter(|_| !is_shells) {
            Some(word) if rest[..open].ends_with('{') && after[word.len() + 1..].starts_with('}') => {
                // `{{word}}` stands for `{word}`.
                parts.push(CommandPart::Text(&rest[..open]));
                rest = &after[word.len() + 2..];
                parts.push(CommandPart::Text(word));
                parts.push(CommandPart::Text("}"));
                begun = 0;
            }
            Some(word) => {
                parts.push(CommandPart::Text(&rest[..open]));
                parts.push(CommandPart::Placeholder(word));
                rest = &after[word.len() + 1..];
                begun = 0;
            }
            None => begun = open + 1,
        }
    }
    parts.push(CommandPart::Text(rest));
    parts
}

/// The first word between braces that is no placeholder.
pub fn unknown(command: &str) -> Option<&str> {
    parts(command).into_iter().find_map(|part| match part {
        CommandPart::Placeholder(word) if names().all(|name| name != word) => Some(word),
        _ => None,
    })
}

/// Whether a command has this placeholder.
pub fn has(command: &str, name: &str) -> bool {
    parts(command).into_iter().any(|part| matches!(part, CommandPart::Placeholder(word) if word == name))
}

/// The command with its placeholders filled in, each as one word of a shell. A word without a value stays as it is.
pub(crate) fn fill(command: &str, values: &PlaceholderValues) -> String {
    filled(command, values, shell::word)
}

/// The same for a text that no shell reads: a file, or its path.
pub(crate) fn fill_plain(text: &str, values: &PlaceholderValues) -> String {
    filled(text, values, |value| Cow::Borrowed(value))
}

fn filled(text: &str, values: &PlaceholderValues, write: for<'a> fn(&'a str) -> Cow<'a, str>) -> String {
    let filled = parts(text).into_iter().map(|part| match part {
        CommandPart::Text(text) => Cow::Borrowed(text),
        CommandPart::Placeholder(word) => match values.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => write(value),
            None => Cow::Owned(format!("{{{word}}}")),
        },
    });
    filled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braced_words_are_replaced_and_shell_keeps_others() {
        let values: PlaceholderValues = vec![
            ("data", "/mnt/a b/data".to_owned()),
            ("port", "7000".to_owned()),
            ("user", "o'hara".to_owned()),
        ];
        let filled = |command: &str| fill(command, &values);
        assert_eq!(filled("initdb -D {data}"), "initdb -D '/mnt/a b/data'");
        assert_eq!(fill_plain("filename={data}/file", &values), "filename=/mnt/a b/data/file");
        assert_eq!(filled("p{port}{port}"), "p70007000");
        assert_eq!(filled("su {user}"), r"su 'o'\''hara'");
        for own in
            ["awk '{print $1}'", "echo ${port}", "find . -exec ls {} +", "echo {a,b}", "{", "a{", "{Port}"]
        {
            assert_eq!((filled(own), unknown(own)), (own.to_owned(), None));
        }
        assert_eq!(filled("awk '{{port}}'"), "awk '{port}'");
        assert_eq!(unknown("echo {data} {prot}"), Some("prot"));
        assert_eq!(unknown("echo {{prot}}"), None);
    }
}
