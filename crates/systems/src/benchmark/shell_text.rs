//! The commands in a shell's text, near enough to find programs, their options and the files that they name. Nothing
//! here runs anything.

use std::mem;

/// Substitutions may stand in each other so deep.
const MAX_DEPTH: usize = 8;

/// The commands of a text, with those of the substitutions in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellScript {
    /// A substitution's commands come before the one that it is a part of.
    pub commands: Vec<ShellCommand>,
    /// The bodies of here-documents, and here-strings.
    pub documents: Vec<String>,
    /// Substitutions stand in each other deeper than anybody looked.
    pub is_too_deep: bool,
}

/// A simple command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellCommand {
    /// Without quotes. A substitution stays in its word as it is written.
    pub words: Vec<String>,
    /// The files that input and output are redirected to.
    pub files: Vec<String>,
}

impl ShellScript {
    /// Reads a text. This never fails.
    pub fn read(text: &str) -> ShellScript {
        let mut script = ShellScript::default();
        script.add(text, 0);
        script
    }

    /// All that the commands name: words, files and documents. Comments are not among them, nor what a command that
    /// does nothing has.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let words = self.commands.iter().flat_map(|command| {
            let does_nothing =
                command.words.first().is_some_and(|word| matches!(word.as_str(), ":" | "true"));
            let count = if does_nothing { 0 } else { command.words.len() };
            command.words[..count].iter().chain(&command.files)
        });
        words.chain(&self.documents).map(String::as_str)
    }

    fn add(&mut self, text: &str, depth: usize) {
        if depth > MAX_DEPTH {
            self.is_too_deep = true;
            return;
        }
        let scanner = ShellScanner {
            letters: text.chars().collect(),
            place: 0,
            depth,
            word: None,
            expected: ExpectedWord::Word,
            command: ShellCommand::default(),
            delimiters: Vec::new(),
            script: self,
        };
        scanner.read();
    }
}

/// The kind of the next word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExpectedWord {
    #[default]
    Word,
    File,
    HereString,
    Delimiter {
        strips_tabs: bool,
    },
}

struct ShellScanner<'a> {
    letters: Vec<char>,
    place: usize,
    depth: usize,
    word: Option<String>,
    expected: ExpectedWord,
    command: ShellCommand,
    /// Of here-documents that begin with the next line.
    delimiters: Vec<(String, bool)>,
    script: &'a mut ShellScript,
}

impl ShellScanner<'_> {
    fn read(mut self) {
        while let Some(letter) = self.next() {
            match letter {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(other) => self.push(other),
                },
                '\'' => self.read_single_quoted(),
                '"' => self.read_double_quoted(),
                '`' => self.read_backticks(),
                '$' if self.peek() == Some('(') => self.read_substitution('$'),
                '<' | '>' if self.peek() == Some('(') => self.read_substitution(letter),
                '<' | '>' => self.read_redirection(letter),
                '#' if self.word.is_none() => self.skip_comment(),
                '\n' => {
                    self.end_command();
                    self.read_documents();
                }
                ';' | '&' | '|' | '(' | ')' => self.end_command(),
                letter if letter.is_whitespace() => self.end_word(),
                other => self.push(other),
            }
        }
        self.end_command();
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.place += 1;
        Some(letter)
    }

    fn peek(&self) -> Option<char> {
        self.letters.get(self.place).copied()
    }

    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn read_single_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(letter) = self.next().filter(|letter| *letter != '\'') {
            self.push(letter);
        }
    }

    fn read_double_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(letter) = self.next() {
            match letter {
                '"' => return,
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(other) => self.push(other),
                },
                '`' => self.read_backticks(),
                '$' if self.peek() == Some('(') => self.read_substitution('$'),
                other => self.push(other),
            }
        }
    }

    fn read_backticks(&mut self) {
        let mut inner = String::new();
        while let Some(letter) = self.next().filter(|letter| *letter != '`') {
            match letter {
                '\\' if matches!(self.peek(), Some('`' | '\\' | '$')) => inner.extend(self.next()),
                other => inner.push(other),
            }
        }
        self.word.get_or_insert_default().push_str(&format!("`{inner}`"));
        self.script.add(&inner, self.depth + 1);
    }

    /// From the opening parenthesis on: `$(...)`, `<(...)`, `>(...)`, or `$((...))`, which only calculates.
    fn read_substitution(&mut self, before: char) {
        self.place += 1;
        let inner = self.until_closed();
        self.word.get_or_insert_default().push_str(&format!("{before}({inner})"));
        if !inner.starts_with('(') {
            self.script.add(&inner, self.depth + 1);
        }
    }

    /// The text before the closing parenthesis, which is passed over.
    fn until_closed(&mut self) -> String {
        let mut inner = String::new();
        let (mut depth, mut quote) = (1_usize, None::<char>);
        while let Some(letter) = self.next() {
            match (letter, quote) {
                ('\\', None | Some('"')) => {
                    inner.push(letter);
                    inner.extend(self.next());
                    continue;
                }
                (letter, Some(end)) if letter == end => quote = None,
                ('\'' | '"', None) => quote = Some(letter),
                ('(', None) => depth += 1,
                (')', None) => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            inner.push(letter);
        }
        inner
    }

    fn read_redirection(&mut self, letter: char) {
        // A number before it is a descriptor.
        let is_number = |word: &String| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
        if self.word.as_ref().is_some_and(is_number) {
            self.word = None;
        }
        self.end_word();
        if letter == '<' && self.peek() == Some('<') {
            self.place += 1;
            let is_string = self.peek() == Some('<');
            let strips_tabs = self.peek() == Some('-');
            self.place += usize::from(is_string || strips_tabs);
            self.expected =
                if is_string { ExpectedWord::HereString } else { ExpectedWord::Delimiter { strips_tabs } };
            return;
        }
        while matches!(self.peek(), Some('<' | '>' | '|')) {
            self.place += 1;
        }
        if self.peek() != Some('&') {
            self.expected = ExpectedWord::File;
            return;
        }
        self.place += 1;
        while self.peek().is_some_and(|letter| letter.is_ascii_digit() || letter == '-') {
            self.place += 1;
        }
    }

    /// The end of the line is left.
    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|letter| letter != '\n') {
            self.place += 1;
        }
    }

    fn read_documents(&mut self) {
        for (delimiter, strips_tabs) in mem::take(&mut self.delimiters) {
            let mut body = String::new();
            while self.place < self.letters.len() {
                let rest = &self.letters[self.place..];
                let length = rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.place += (length + 1).min(rest.len());
                let line = if strips_tabs { line.trim_start_matches('\t') } else { line.as_str() };
                if line == delimiter {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            self.script.documents.push(body);
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match mem::take(&mut self.expected) {
            ExpectedWord::Word => self.command.words.push(word),
            ExpectedWord::File => self.command.files.push(word),
            ExpectedWord::HereString => self.script.documents.push(word),
            ExpectedWord::Delimiter { strips_tabs } => self.delimiters.push((word, strips_tabs)),
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.expected = ExpectedWord::Word;
        let command = mem::take(&mut self.command);
        if command != ShellCommand::default() {
            self.script.commands.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        ShellScript::read(text).commands.into_iter().map(|command| command.words).collect()
    }

    #[test]
    fn commands_end_where_a_shell_ends_them() {
        let expected = [vec!["a", "b c"], vec!["d"], vec!["e", "f"], vec!["g"]];
        assert_eq!(words("a 'b c' && d # x && y\n(e \\\nf) | \"g\" # h"), expected);
        assert_eq!(words("a#b 'c#d'"), [vec!["a#b", "c#d"]]);
        assert_eq!(words(""), Vec::<Vec<String>>::new());
    }

    #[test]
    fn commands_in_substitutions_are_found() {
        for text in
            ["x $(a b)", "x \"$(a b)\"", "x `a b`", "x \"`a b`\"", "x <(a b)", "x > >(a b)", "x $(a b"]
        {
            assert_eq!(words(text)[0], ["a", "b"], "{text}");
        }
        assert_eq!(
            words("a $(b \"$(c ')')\")"),
            [vec!["c", ")"], vec!["b", "$(c ')')"], vec!["a", "$(b \"$(c ')')\")"]]
        );
        assert_eq!(words("a $((500 / 2))"), [["a", "$((500 / 2))"]]);
        let deep = "$(".repeat(50);
        assert!(ShellScript::read(&deep).is_too_deep);
    }

    #[test]
    fn redirections_and_documents_are_no_words() {
        let script = ShellScript::read("a 2>err <in >>out 2>&1 b <<-'END' c <<<'text d'\n\tone\n\tEND\nd");
        assert_eq!(script.commands[0].words, ["a", "b", "c"]);
        assert_eq!(script.commands[0].files, ["err", "in", "out"]);
        assert_eq!(script.documents, ["text d", "one\n"]);
        assert_eq!(script.commands[1].words, ["d"]);
        assert_eq!(ShellScript::read("a <<END\nb").documents, ["b\n"]);
    }

    #[test]
    fn comments_and_commands_that_do_nothing_name_nothing() {
        let texts = |text: &str| ShellScript::read(text).texts().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(texts("a # {data}\n: {data}\ntrue {data} >{scratch}/x"), ["a", "{scratch}/x"]);
        assert_eq!(texts("echo '# {data}'"), ["echo", "# {data}"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[a<>$()`'\"\\\\#&|; \n-]{0,60}") {
            let _ = ShellScript::read(&text);
        }
    }
}
