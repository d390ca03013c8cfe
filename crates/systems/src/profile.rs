//! How a system describes itself to people, to the host that it runs on and to a first study of it.

use crate::first_study::FirstStudy;

/// What a system is, regardless of settings. What a study may ask of it is in
/// [`SystemCapabilities`](crate::system::SystemCapabilities), and what depends on settings are methods of
/// [`System`](crate::system::System).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystemProfile {
    /// As people say it, in reports: `Cassandra`.
    pub title: &'static str,
    /// As its makers write it in full, the heading of its page: `Apache Cassandra`.
    pub full_title: &'static str,
    /// Its page in the book, below `docs`.
    pub page: &'static str,
    /// What runs once it is started, for the book's list of systems, in Markdown.
    pub starts: &'static str,
    /// Other words for it, in lower case. A study that has one of them is told the system's name.
    pub aliases: &'static [&'static str],
    /// The programs that it is known to run, by the usual names of their sections, each with its title. Only for a
    /// system whose sections are called as what they run.
    pub programs: &'static [(&'static str, &'static str)],
    /// It is one process that is there within a second or two, so that tests may start it hundreds of times.
    pub starts_at_once: bool,
    /// The programs of the host that it can't do without.
    pub needs: &'static [ProgramNeed],
    /// The property by which YCSB's own binding of it says where its data are.
    pub ycsb_directory: Option<&'static str>,
    /// Where `underlay new` begins; `None` where only the user can know the commands that it takes.
    pub first_study: Option<FirstStudy>,
}

impl SystemProfile {
    /// Of a system of several processes that needs nothing of the host and goes by one name. The rest is its own.
    pub(crate) const USUAL: SystemProfile = SystemProfile {
        title: "",
        full_title: "",
        page: "",
        starts: "",
        aliases: &[],
        programs: &[],
        starts_at_once: false,
        needs: &[],
        ycsb_directory: None,
        first_study: None,
    };

    /// The title of a study's section with the name `section`, whose system is called `system`: its own name says more
    /// than the kind where they differ.
    pub fn title_of<'a>(&self, system: &str, section: &'a str) -> &'a str {
        let program = self.programs.iter().find(|(name, _)| *name == section);
        match program {
            Some((_, title)) => title,
            None if section == system => self.title,
            None => section,
        }
    }
}

/// A program of the host that a system can't do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramNeed {
    /// As `underlay doctor` lists it.
    pub name: &'static str,
    /// The file on the `PATH`.
    pub program: &'static str,
    /// Debian's package that has it.
    pub package: &'static str,
    /// What is done with it, before the systems' titles: `running`.
    pub purpose: &'static str,
}

/// Java's compiler, which comes with its runtime: systems in Java are driven by classes that are compiled here.
pub const JAVA: ProgramNeed =
    ProgramNeed { name: "java", program: "javac", package: "openjdk-17-jdk-headless", purpose: "running" };
/// Fetches what a system in Java is made of ([`crate::artifacts`]).
pub const MAVEN: ProgramNeed =
    ProgramNeed { name: "maven", program: "mvn", package: "maven", purpose: "fetching" };

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use crate::system::System;

    const TABLE: &str = "| kind | system | what starts |\n| --- | --- | --- |\n";

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    fn check_page(path: &Path, expected: &str) {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, expected).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == expected,
            "{} is out of date: UPDATE_DOCS=1 cargo test -p underlay-systems --lib profile writes it",
            path.display()
        );
    }

    /// Run with UPDATE_DOCS=1 to write the pages again.
    #[test]
    fn book_lists_all_systems() {
        let row = |system: &dyn System| {
            let profile = system.profile();
            format!(
                "| `{}` | [{}]({}) | {} |\n",
                system.name(),
                profile.full_title,
                profile.page,
                profile.starts
            )
        };
        let path = docs().join("systems.md");
        let written = std::fs::read_to_string(&path).unwrap();
        let (head, _) = written.split_once(TABLE).unwrap();
        check_page(&path, &format!("{head}{TABLE}{}", crate::all().map(row).collect::<String>()));
    }

    #[test]
    fn systems_have_pages_in_book() {
        let summary = std::fs::read_to_string(docs().join("SUMMARY.md")).unwrap();
        for profile in crate::all().map(System::profile) {
            assert!(summary.contains(&format!("]({})", profile.page)), "SUMMARY.md lacks {}", profile.page);
            // A page of several parts is written by hand.
            let Some(folder) =
                profile.page.strip_prefix("systems/").and_then(|page| page.strip_suffix(".md"))
            else {
                continue;
            };
            let include = format!("{{{{#include ../../crates/systems/src/{folder}/docs.md}}}}");
            check_page(&docs().join(profile.page), &format!("# {}\n\n{include}\n", profile.full_title));
        }
    }

    #[test]
    fn names_and_aliases_mean_one_system() {
        for system in crate::all() {
            let profile = system.profile();
            let words = [profile.title, profile.full_title, profile.page, profile.starts];
            assert!(words.iter().all(|word| !word.is_empty()), "{}: {profile:?}", system.name());
            assert_eq!(profile.title_of(system.name(), system.name()), profile.title);
            assert_eq!(profile.title_of(system.name(), "ring"), "ring");
            for alias in profile.aliases {
                let users = crate::all().filter(|other| other.profile().aliases.contains(alias)).count();
                assert_eq!((users, alias.to_lowercase().as_str()), (1, *alias), "{}", system.name());
                assert!(crate::find(alias).is_none(), "{alias} is the name of a system");
            }
            assert_eq!(profile.first_study.is_none(), system.capabilities().by_command, "{}", system.name());
        }
        assert_eq!(crate::command::INSTALLED.profile().title_of("command", "sqlite"), "SQLite");
    }
}
