//! No example that we give puts a secret where other users of the host read it: on a command line, which `/proc` shows
//! to everybody, or in a log. People do as examples do.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::arguments::CliArguments;

/// Words that name a secret, as a part of a file's, variable's or header's name.
const SECRET_WORDS: [&str; 9] =
    ["token", "secret", "passw", "passphrase", "credential", "apikey", "api-key", "api_key", "private_key"];
/// Commands that make a secret.
const MAKES_SECRETS: [&str; 5] = ["openssl rand", "pwgen", "urandom", "gen-dhchap-key", "uuidgen"];
/// Options whose value is a secret, and not a file with one.
const SECRET_OPTIONS: [&str; 11] = [
    "--password",
    "--passwd",
    "--pass",
    "--passphrase",
    "--token",
    "--secret",
    "--api-key",
    "--secret-key",
    "--dhchap-secret",
    "--dhchap-ctrl-secret",
    "--oauth2-bearer",
];
const FETCHES: [&str; 4] = ["curl", "wget", "xdg-open", "http "];

/// How a text is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextKind {
    /// Commands of a shell, and words about them.
    Shell,
    /// A program, with messages that advise commands.
    Program,
}

/// A command with none of these that names no secret exposes none.
const MAY_EXPOSE: [&str; 6] = ["authorization", "cookie", "://", "-pass", "--user", "-u "];

fn is_secret(text: &str) -> bool {
    let text = text.to_lowercase();
    SECRET_WORDS.iter().any(|word| text.contains(word))
}

/// The words of a command line, without quotes. Each separator of commands is a word of its own.
fn words(line: &str) -> Vec<String> {
    let mut spaced = String::new();
    for character in line.chars() {
        match character {
            '|' | ';' | '&' | '(' | ')' | '{' | '}' => spaced.extend([' ', character, ' ']),
            '"' | '\'' | '`' => {}
            other => spaced.push(other),
        }
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// The exposure in a line, if any.
fn exposure(line: &str, kind: TextKind) -> Option<&'static str> {
    let lower = line.to_lowercase();
    if !MAY_EXPOSE.iter().chain(&MAKES_SECRETS).any(|one| lower.contains(one)) && !is_secret(&lower) {
        return None;
    }
    for (position, _) in line.match_indices("$(") {
        let inner = line[position + 2..].split(')').next().unwrap_or_default().trim().to_lowercase();
        let reads = ["cat ", "<", "head ", "tail "].iter().any(|word| inner.starts_with(word));
        let makes = MAKES_SECRETS.iter().any(|word| inner.contains(word));
        let before = line[..position].trim_end_matches('"');
        // A shell's own variable is on nobody's command line.
        let is_assignment = before.strip_suffix('=').is_some_and(|before| {
            let start = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
            start.len() < before.len()
                && start.chars().next_back().is_none_or(|c| c.is_whitespace() || ";&|({".contains(c))
        });
        if (makes || reads && is_secret(&inner)) && !is_assignment {
            return Some("a secret is substituted into a command line");
        }
    }
    let words = words(line);
    for (place, word) in words.iter().enumerate() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (word.as_str(), words.get(place + 1).cloned()),
        };
        let value = value.unwrap_or_default();
        let rest = words[place..].join(" ").to_lowercase();
        if matches!(option, "-H" | "--header") && !value.starts_with('@') {
            let names_secret =
                ["authorization:", "cookie:"].iter().any(|name| rest.contains(name)) || is_secret(&value);
            if names_secret {
                return Some("a header with a secret is an argument: expected --header @FILE");
            }
        }
        if matches!(option, "-u" | "--user")
            && value.contains(':')
            && FETCHES.iter().any(|one| lower.contains(one))
        {
            return Some("a user's password is an argument");
        }
        if SECRET_OPTIONS.contains(&option) {
            return Some("the value of an option is a secret: expected a file");
        }
        if matches!(option, "-passin" | "-passout" | "-pass") && value.starts_with("pass:") {
            return Some("a passphrase is an argument");
        }
        if kind == TextKind::Shell && is_argument_assignment(&words, place) {
            return Some("a variable with a secret is an argument of a command");
        }
    }
    let is_fetched = FETCHES.iter().any(|one| lower.contains(one));
    let is_in_query =
        ["?token=", "&token=", "?password=", "&password="].iter().any(|one| lower.contains(one));
    if is_fetched && is_in_query {
        return Some("an address with a secret is an argument");
    }
    for (start, _) in line.match_indices("://").filter(|_| kind == TextKind::Shell) {
        let authority =
            line[start + 3..].split(|c: char| c == '/' || c.is_whitespace() || "\"'`".contains(c)).next();
        if authority.and_then(|text| text.rsplit_once('@')).is_some_and(|(user, _)| user.contains(':')) {
            return Some("an address has a password in it");
        }
    }
    if kind == TextKind::Shell
        && lower.contains("environment=")
        && is_secret(&lower)
        && lower.matches('=').count() > 1
        && !lower.contains("-file")
    {
        return Some("a unit has a secret that everybody reads");
    }
    let makes_open_file = lower.contains('>') && lower.contains("chmod") && !lower.contains("umask");
    if makes_open_file && is_secret(&lower) {
        return Some("a file with a secret is open to others until chmod: expected umask 077 before it");
    }
    (kind == TextKind::Shell).then(|| printed(&words)).flatten()
}

/// `NAME=VALUE` of a secret behind a command's name: an assignment before it is in the environment, which is for its
/// user alone.
fn is_argument_assignment(words: &[String], place: usize) -> bool {
    let is_assignment = |word: &str| {
        word.split_once('=').is_some_and(|(name, value)| {
            !name.is_empty()
                && !value.is_empty()
                && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
    };
    let word = &words[place];
    if !is_assignment(word) || !is_secret(word.split('=').next().unwrap_or_default()) {
        return false;
    }
    let command: Vec<&String> = words[..place]
        .iter()
        .rev()
        .take_while(|word| !matches!(word.as_str(), "|" | ";" | "&" | "(" | ")" | "{" | "}" | "$" | "#"))
        .collect();
    // A prompt is no command.
    let is_command = |word: &str| !is_assignment(word) && !word.ends_with('$') && word != "export";
    command.iter().any(|word| is_command(word))
}

/// A secret that a command prints, and nothing keeps it from the screen or a log.
fn printed(words: &[String]) -> Option<&'static str> {
    let (place, _) = words.iter().enumerate().find(|(place, word)| {
        let before = |distance: usize| place.checked_sub(distance).map_or("", |place| words[place].as_str());
        let is_first = matches!(before(1), "" | "|" | ";" | "&" | "(" | "{") || before(1).ends_with('$');
        // A substitution's output goes into a word, which is checked as such.
        let is_substituted = before(1) == "(" && before(2).ends_with('$');
        is_first && !is_substituted && matches!(word.as_str(), "cat" | "echo" | "head" | "tail")
    })?;
    let arguments: Vec<&String> = words[place + 1..]
        .iter()
        .take_while(|word| !matches!(word.as_str(), "|" | ";" | "&" | ")" | "}"))
        .collect();
    let goes_on = words[place..].iter().any(|word| word.contains('>') || word == "|");
    let is_shown = arguments.iter().any(|word| !word.contains(' ') && is_secret(word)) && !goes_on;
    // Sentences begin with such words too, but not many of them are so short.
    (is_shown && arguments.len() <= 2).then_some("a secret is printed")
}

/// Lines that go on behind a backslash, as one.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let (line, continues) = match line.trim_end().strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match found.last_mut() {
            Some((_, last)) if goes_on => last.push_str(line),
            _ => found.push((number, line.to_owned())),
        }
        goes_on = continues;
    }
    found
}

fn complaints(name: &str, text: &str, kind: TextKind) -> Vec<String> {
    lines(text)
        .into_iter()
        .filter_map(|(number, line)| {
            Some(format!("{name}:{number}: {}: {}", exposure(&line, kind)?, line.trim()))
        })
        .collect()
}

/// All files below a directory of the sources.
fn files(below: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(below).unwrap_or_else(|error| panic!("{}: {error}", below.display()));
    let mut found = Vec::new();
    for entry in entries.map(Result::unwrap) {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() && entry.file_name() != "target" && entry.file_name() != "fixtures" => {
                found.extend(files(&path));
            }
            kind if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// The help of a command and of all below it.
fn helps(mut command: clap::Command, name: &str, found: &mut Vec<(String, String)>) {
    found.push((format!("{name} --help"), command.render_long_help().to_string()));
    for inner in command.get_subcommands() {
        helps(inner.clone(), &format!("{name} {}", inner.get_name()), found);
    }
}

#[test]
fn documented_examples_leak_no_secret() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut look = |path: &Path, kind: TextKind| {
        // Pictures and the like have no examples.
        let Ok(text) = std::fs::read_to_string(path) else { return };
        looked_at += 1;
        found.extend(complaints(
            &path.strip_prefix(&root).unwrap_or(path).display().to_string(),
            &text,
            kind,
        ));
    };
    for page in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "Makefile"] {
        look(&root.join(page), TextKind::Shell);
    }
    for folder in ["docs", "deploy", "contrib", "scripts", "studies"] {
        for file in files(&root.join(folder)) {
            look(&file, TextKind::Shell);
        }
    }
    for folder in ["benches", "crates"] {
        for file in files(&root.join(folder)) {
            let is_test = file.components().any(|part| part.as_os_str() == "tests")
                || file.ends_with("documented_secrets.rs");
            let kind = if file.extension().is_some_and(|kind| kind == "md") {
                TextKind::Shell
            } else {
                TextKind::Program
            };
            if !is_test {
                look(&file, kind);
            }
        }
    }
    let mut all = Vec::new();
    helps(CliArguments::command(), "underlay", &mut all);
    assert!(looked_at > 300 && all.len() > 20, "{looked_at} files, {} helps", all.len());
    for (name, text) in &all {
        found.extend(complaints(name, text, TextKind::Shell));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn examples_that_expose_a_secret_are_recognised() {
    for bad in [
        "$ curl -H \"Authorization: Bearer $(cat token)\" http://127.0.0.1:7100/api/runs",
        "curl --header 'Authorization: Bearer abc' http://x/",
        "curl --header=\"Cookie: underlay-console=1\" http://x/",
        "curl -H X-Auth-Token:abc http://x/",
        "curl -u admin:word http://x/",
        "wget --user root:x http://x/",
        "curl 'http://127.0.0.1:7100/?token=abc'",
        "curl --oauth2-bearer abc http://x/",
        "mysql --password=word",
        "program --token $TOKEN",
        "program --x \"$(< secret.txt)\"",
        "sed \"s/token: x/token: $(openssl rand -hex 32)/\" file",
        "kubectl create secret generic a --from-literal=b=\"$(openssl rand -hex 9)\"",
        "env DB_PASSWORD=word program",
        "host-a$ ssh host DB_PASSWORD=word program",
        "docker run -e AWS_SECRET_ACCESS_KEY=word image",
        "openssl pkcs12 -in a -passin pass:word",
        "psql postgres://me:word@db/x",
        "openssl rand -hex 32 > token; chmod 600 token",
        "Environment=CASSANDRA_PASSWORD=word",
        "cat token",
        "$ echo $TOKEN",
    ] {
        assert!(exposure(bad, TextKind::Shell).is_some(), "{bad}");
    }
    assert_eq!(
        complaints("x", "curl \\\n  -H \"Authorization: Bearer x\" \\\n  http://x/", TextKind::Shell).len(),
        1
    );
    for good in [
        "$ curl --header @header http://127.0.0.1:7100/api/runs",
        "curl --config file http://x/",
        "curl -H 'Accept: application/json' http://x/",
        "(umask 077; openssl rand -hex 32 > token; { printf 'Authorization: Bearer '; cat token; } > header)",
        "underlay worker --token-file token",
        "TOKEN=$(cat token)",
        "host-a$ CASSANDRA_PASSWORD=x underlay worker --stdio",
        "EnvironmentFile=-/etc/underlay/gateway.secrets",
        "Environment=\"CONSOLE_OPTIONS=--token-file %d/token\"",
        "underlay mount nvme-tcp://127.0.0.1:4420/logs DIR --secret-file host.secret",
        "`/metrics` and `/status` take `Authorization: Bearer TOKEN`",
        "run=$(date +%s)",
    ] {
        assert_eq!(exposure(good, TextKind::Shell), None, "{good}");
    }
}
