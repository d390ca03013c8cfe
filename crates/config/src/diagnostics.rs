//! Mistakes in a text file, each shown at its line and column with what was expected.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::suggest::closest;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiagnosticSeverity {
    /// The file can't be used as it is.
    Error,
    /// It can, but the reader should know.
    Note,
}

/// The unknown word.
#[derive(Clone, Copy, Debug)]
pub enum UnknownName<'a> {
    Key(&'a str),
    Value(&'a str),
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: DiagnosticSeverity,
    /// The mistake, in one line without a full stop.
    pub message: String,
    /// Bytes of the text.
    pub span: Range<usize>,
    /// Printed beside the underlined place: what was expected there.
    pub label: String,
    /// Another place that matters, with what it is.
    pub context: Option<(Range<usize>, String)>,
    /// The next step.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error at `span`; `label` says what was expected there, and may be empty.
    pub fn error(span: Range<usize>, message: impl Into<String>, label: impl Into<String>) -> Self {
        Diagnostic {
            severity: DiagnosticSeverity::Error,
            message: message.into(),
            span,
            label: label.into(),
            context: None,
            help: None,
        }
    }

    pub fn note(span: Range<usize>, message: impl Into<String>, label: impl Into<String>) -> Self {
        Diagnostic { severity: DiagnosticSeverity::Note, ..Diagnostic::error(span, message, label) }
    }

    /// An error about a word that is none of `names`: the nearest of them where one is near, and what was `expected`.
    pub fn unknown<'a>(
        span: Range<usize>,
        message: impl Into<String>,
        word: UnknownName<'_>,
        names: impl IntoIterator<Item = &'a str>,
        expected: impl Into<String>,
    ) -> Self {
        let meant = match word {
            UnknownName::Key(key) => closest(key, names).map(|meant| format!("did you mean `{meant}`?")),
            UnknownName::Value(value) => {
                closest(value, names).map(|meant| format!("did you mean \"{meant}\"?"))
            }
        };
        match (meant, word) {
            (None, UnknownName::Value(_)) => Diagnostic::error(span, message, expected),
            // Of keys there is a long list, which has its place below.
            (meant, _) => Diagnostic::error(span, message, meant.unwrap_or_default()).with_help(expected),
        }
    }

    /// The mistake and the expected value, for a message that has no lines to show.
    pub fn to_one_line(&self) -> String {
        match self.label.is_empty() {
            true => self.message.clone(),
            false => format!("{}: {}", self.message, self.label),
        }
    }

    /// All of it except the other place.
    fn mistake(&self) -> (DiagnosticSeverity, &Range<usize>, &str, &str, Option<&str>) {
        (self.severity, &self.span, &self.message, &self.label, self.help.as_deref())
    }

    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub fn with_context(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.context = Some((span, label.into()));
        self
    }
}

/// All findings of one file. Printing it (`{}`) gives plain text; [`Diagnostics::render`] can colour.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    file_name: String,
    text: String,
    /// Texts beside the file, in the order of where they begin.
    options: Vec<OptionText>,
    findings: Vec<Diagnostic>,
}

/// The value of a command-line option. Its bytes are numbered on from those of the texts before it.
#[derive(Clone, Debug)]
struct OptionText {
    name: String,
    begin: usize,
    text: String,
}

impl Diagnostics {
    pub fn new(file_name: impl Into<String>, text: impl Into<String>) -> Self {
        let (file_name, text) = (file_name.into(), text.into());
        Diagnostics { file_name, text, options: Vec::new(), findings: Vec::new() }
    }

    /// The text of an option beside the file; spans from the returned byte on point into it.
    pub(crate) fn add_option(&mut self, name: &str, text: &str) -> usize {
        let before = self.options.last().map_or(self.text.len(), |last| last.begin + last.text.len());
        // A byte between two texts, so that the end of one is not the begin of the next.
        let begin = before + 1;
        self.options.push(OptionText { name: name.to_owned(), begin, text: text.to_owned() });
        begin
    }

    pub fn push(&mut self, finding: Diagnostic) {
        self.findings.push(finding);
    }

    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    pub fn findings(&self) -> &[Diagnostic] {
        &self.findings
    }

    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn error_count(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == DiagnosticSeverity::Error).count()
    }

    pub fn has_errors(&self) -> bool {
        self.error_count() > 0
    }

    /// Of the same texts, and without a finding.
    pub fn emptied(&self) -> Diagnostics {
        Diagnostics { findings: Vec::new(), ..self.clone() }
    }

    /// Leaves out the notes.
    pub fn retain_errors(&mut self) {
        self.findings.retain(|finding| finding.severity == DiagnosticSeverity::Error);
    }

    /// Orders the findings as they stand in the text; those of one place keep their order. One that was found again,
    /// in the company of something else, stands there once: mending it is one change.
    pub fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.span.start);
        let mut findings: Vec<Diagnostic> = Vec::new();
        for finding in std::mem::take(&mut self.findings) {
            let mut neighbours =
                findings.iter().rev().take_while(|other| other.span.start == finding.span.start);
            if !neighbours.any(|other| other.mistake() == finding.mistake()) {
                findings.push(finding);
            }
        }
        self.findings = findings;
    }

    /// What `read` gives, and whether it found no mistake. Of a part with one, something may be missing: what is not
    /// in it may be in the text.
    pub fn attempt<T>(&mut self, read: impl FnOnce(&mut Diagnostics) -> T) -> (T, bool) {
        let before = self.findings.len();
        let part = read(self);
        let is_error = |finding: &Diagnostic| finding.severity == DiagnosticSeverity::Error;
        (part, !self.findings.iter().skip(before).any(is_error))
    }

    /// The file or the option that holds a byte, with its line and column there, both from 1; columns count characters.
    pub fn place(&self, byte: usize) -> (&str, usize, usize) {
        let (name, begin, text) = self.source(byte);
        let before = &text[..boundary(text, byte - begin)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (name, before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// As [`place`](Self::place), of a text that no option adds to.
    pub fn line_column(&self, byte: usize) -> (usize, usize) {
        let (_, line, column) = self.place(byte);
        (line, column)
    }

    /// Where a part of a string is in the file, whose `span` has the string with its quotes. Nothing where the file has
    /// it in other letters, with escapes for one.
    pub fn part_of(&self, span: &Range<usize>, value: &str, part: &Range<usize>) -> Option<Range<usize>> {
        let (_, begin, text) = self.source(span.start);
        let written = text.get(span.start.checked_sub(begin)?..span.end.checked_sub(begin)?)?;
        let inside = written.find(value).filter(|_| !value.is_empty())?;
        Some(span.start + inside + part.start..span.start + inside + part.end)
    }

    /// The text that holds a byte, with its name and where it begins.
    fn source(&self, byte: usize) -> (&str, usize, &str) {
        match self.options.iter().rev().find(|option| option.begin <= byte) {
            Some(option) => (&option.name, option.begin, &option.text),
            None => (&self.file_name, 0, &self.text),
        }
    }

    /// Every finding with its lines of the file; `coloured` adds terminal escapes.
    pub fn render(&self, coloured: bool) -> String {
        let renderer = if coloured { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for finding in &self.findings {
            out.push_str(&renderer.render(&self.groups(finding)));
            out.push_str("\n\n");
        }
        out.push_str(&self.summary());
        out
    }

    /// `study.toml: 2 errors, 1 note`
    fn summary(&self) -> String {
        let errors = self.error_count();
        let notes = self.findings.len() - errors;
        let counted =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        match (errors, notes) {
            (0, 0) => format!("{}: no mistakes", self.file_name),
            (0, _) => format!("{}: {}", self.file_name, counted(notes, "note")),
            (_, 0) => format!("{}: {}", self.file_name, counted(errors, "error")),
            _ => format!("{}: {}, {}", self.file_name, counted(errors, "error"), counted(notes, "note")),
        }
    }

    fn groups<'a>(&'a self, finding: &'a Diagnostic) -> Vec<Group<'a>> {
        let level = match finding.severity {
            DiagnosticSeverity::Error => Level::ERROR,
            DiagnosticSeverity::Note => Level::NOTE,
        };
        let (name, begin, text) = self.source(finding.span.start);
        let mut primary = AnnotationKind::Primary.span(visible(text, begin, &finding.span));
        if !finding.label.is_empty() {
            primary = primary.label(finding.label.as_str());
        }
        let mut snippet = Snippet::source(text).path(name).annotation(primary);
        let mut second_snippet = None;
        if let Some((span, label)) = &finding.context {
            let (name, its_begin, text) = self.source(span.start);
            let context = AnnotationKind::Context.span(visible(text, its_begin, span)).label(label.as_str());
            match its_begin == begin {
                true => snippet = snippet.annotation(context),
                false => second_snippet = Some(Snippet::source(text).path(name).annotation(context)),
            }
        }
        let mut group = level.primary_title(finding.message.as_str()).element(snippet);
        if let Some(second_snippet) = second_snippet {
            group = group.element(second_snippet);
        }
        if let Some(help) = &finding.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        vec![group]
    }
}

/// The span within a text that begins at `begin`, cut to its first line and to whole characters, so that any span can
/// be drawn.
fn visible(text: &str, begin: usize, span: &Range<usize>) -> Range<usize> {
    let start = boundary(text, span.start.saturating_sub(begin));
    let end = boundary(text, span.end.saturating_sub(begin).max(start));
    let line_end = text[start..end].find('\n').map_or(end, |newline| start + newline);
    start..line_end
}

fn boundary(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_finding_stands_once() {
        let finding = |label: &str| Diagnostic::error(2..4, "wrong", label);
        let mut findings = Diagnostics::new("a.toml", "a = 5\nb = 6\n");
        findings.push(Diagnostic::error(6..7, "wrong", "one"));
        findings.push(finding("one").with_context(6..7, "beside this"));
        findings.push(finding("two"));
        findings.push(finding("one"));
        findings.push(finding("one").with_help("do this"));
        findings.push(Diagnostic::note(2..4, "wrong", "one"));
        findings.sort();
        let found: Vec<_> =
            findings.findings().iter().map(|one| (one.span.start, one.label.as_str())).collect();
        assert_eq!(found, [(2, "one"), (2, "two"), (2, "one"), (2, "one"), (6, "one")]);
        assert!(findings.findings()[0].context.is_some());
    }

    #[test]
    fn attempt_tells_of_errors_alone() {
        let mut findings = Diagnostics::new("a.toml", "a = 5\n");
        findings.push(Diagnostic::error(0..1, "before", ""));
        let note = |findings: &mut Diagnostics| findings.push(Diagnostic::note(0..1, "a note", ""));
        assert!(findings.attempt(note).1);
        assert!(!findings.attempt(|findings| findings.push(Diagnostic::error(0..1, "wrong", ""))).1);
    }
}
