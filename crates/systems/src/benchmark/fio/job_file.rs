//! The text of a job file as fio reads it: sections, and the options that hold in each.

use std::ops::Range;

use super::options;

/// A job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFile {
    /// In the order of the text, `[global]` sections among them.
    pub sections: Vec<JobSection>,
    /// Lines that fio takes for no option of a section.
    pub strays: Vec<StrayLine>,
}

/// A section with its own options.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSection {
    pub name: String,
    /// Its options hold in every section after it.
    pub is_global: bool,
    /// Bytes of the text.
    pub span: Range<usize>,
    pub settings: Vec<JobOption>,
}

/// An option with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOption {
    /// As it is written: maybe an alias.
    pub key: String,
    /// Nothing where there is no `=`.
    pub value: Option<String>,
    /// The bytes of its line, without blanks and comments.
    pub span: Range<usize>,
}

/// A line that belongs to no section, or includes another file.
#[derive(Clone, Debug, PartialEq)]
pub struct StrayLine {
    pub text: String,
    pub span: Range<usize>,
    pub is_include: bool,
}

impl JobOption {
    /// The name that the table of options has it by.
    pub fn name(&self) -> &str {
        options::find(&self.key).map_or(&self.key, |option| option.name)
    }

    /// fio takes an option without a value for one that is switched on.
    pub fn text(&self) -> &str {
        self.value.as_deref().unwrap_or("1")
    }

    /// Whether a switch is on.
    pub fn is_on(&self) -> bool {
        !matches!(self.text(), "0" | "")
    }
}

impl JobFile {
    /// Reads a text. This never fails: text that fio would stumble over is a stray.
    pub fn parse(text: &str) -> JobFile {
        let mut file = JobFile::default();
        let mut begin = 0;
        for line in text.split_inclusive('\n') {
            let span = content(line, begin);
            begin += line.len();
            let content = &text[span.clone()];
            if content.is_empty() {
                continue;
            }
            if content.starts_with("include") {
                file.strays.push(StrayLine { text: content.to_owned(), span, is_include: true });
            } else if let Some(rest) = content.strip_prefix('[') {
                let name = rest.strip_suffix(']').unwrap_or(rest).to_owned();
                // fio compares the beginning only.
                let is_global = name.starts_with("global");
                file.sections.push(JobSection { name, is_global, span, settings: Vec::new() });
            } else if let Some(section) = file.sections.last_mut() {
                let (key, value) = match content.split_once('=') {
                    Some((key, value)) => (key.trim(), Some(value.trim().to_owned())),
                    None => (content, None),
                };
                section.settings.push(JobOption { key: key.to_owned(), value, span });
            } else {
                file.strays.push(StrayLine { text: content.to_owned(), span, is_include: false });
            }
        }
        file
    }

    /// The sections that are jobs.
    pub fn jobs(&self) -> impl Iterator<Item = FioJobSection<'_>> {
        (0..self.sections.len())
            .filter(|index| !self.sections[*index].is_global)
            .map(|index| FioJobSection { file: self, index })
    }
}

/// A section that is a job, with what `[global]` sections before it say.
#[derive(Clone, Copy, Debug)]
pub struct FioJobSection<'a> {
    file: &'a JobFile,
    index: usize,
}

impl<'a> FioJobSection<'a> {
    /// The section itself.
    pub fn section(&self) -> &'a JobSection {
        &self.file.sections[self.index]
    }

    /// All settings that reach it, those of `[global]` sections first: a later one counts.
    pub fn settings(&self) -> impl DoubleEndedIterator<Item = &'a JobOption> {
        let before = self.file.sections[..self.index].iter().filter(|section| section.is_global);
        before.chain([self.section()]).flat_map(|section| &section.settings)
    }

    /// The setting of this name that counts.
    pub fn setting(&self, name: &str) -> Option<&'a JobOption> {
        self.settings().rev().find(|setting| setting.name() == name)
    }

    /// Its value.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.setting(name).map(JobOption::text)
    }

    /// Whether the switch of this name is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.setting(name).is_some_and(JobOption::is_on)
    }

    /// Its name as fio's figures have it.
    pub fn name(&self) -> &'a str {
        self.value("name").unwrap_or(&self.section().name)
    }
}

/// A line without blanks around it, and without what follows a `;` or a `#`, which begin comments wherever they stand.
fn content(line: &str, begin: usize) -> Range<usize> {
    let end = line.find([';', '#']).unwrap_or(line.len());
    let is_blank = |c: char| c.is_whitespace() || c.is_control();
    let trimmed = line[..end].trim_end_matches(is_blank);
    let front = trimmed.len() - trimmed.trim_start_matches(is_blank).len();
    begin + front..begin + trimmed.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_what_global_ones_before_them_say() {
        let text = "; by hand\n[global]\nrw=randread ; reads\n bs = 4k\n[one]\nrw=write\nstonewall\n[globals]\nbs=8k\n[two]\nname=other\n";
        let file = JobFile::parse(text);
        let jobs: Vec<FioJobSection<'_>> = file.jobs().collect();
        let summary_of = |job: &FioJobSection<'_>| {
            (job.name().to_owned(), job.value("rw").unwrap().to_owned(), job.value("bs").unwrap().to_owned())
        };
        let expected = [("one", "write", "4k"), ("other", "randread", "8k")]
            .map(|(name, rw, bs)| (name.to_owned(), rw.to_owned(), bs.to_owned()));
        assert_eq!(jobs.iter().map(summary_of).collect::<Vec<_>>(), expected);
        assert!(jobs[0].is_on("stonewall") && !jobs[1].is_on("stonewall"));
        assert_eq!(&text[jobs[0].setting("bs").unwrap().span.clone()], "bs = 4k");
        assert!(file.strays.is_empty());
    }

    #[test]
    fn text_that_fio_rejects_is_stray() {
        let file = JobFile::parse("rw=read\n[one]\ninclude other.fio\n");
        assert_eq!(file.strays.iter().map(|stray| stray.is_include).collect::<Vec<_>>(), [false, true]);
        for text in ["", "[", "[]", "=", "[a]\n=\n", "[a]\n#", "\u{e9}=\u{e9}", "[a]\r\nbs=4k\r\n"] {
            JobFile::parse(text);
        }
        assert_eq!(JobFile::parse("[a]\r\nbs=4k\r\n").jobs().next().unwrap().value("bs"), Some("4k"));
    }
}
