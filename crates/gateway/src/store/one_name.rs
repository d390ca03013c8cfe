//! Whether a directory tells all names apart. Some take two for one: they fold case, bring Unicode to a normal form, or
//! leave out what stands at the end. Two keys would be one file there, and each the other's object.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underlay_files::{Access, Folder};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::StoreBackend;

/// The name of the folder that names are tried in. No key leads there.
pub(super) const TRIAL: &str = "%underlay-no-key-names";

/// Two names that some directories take for one, and why.
struct NamePair {
    names: [&'static str; 2],
    why: &'static str,
}

const PAIRS: [NamePair; 8] = [
    NamePair { names: ["case", "CASE"], why: "does not tell small letters from capitals" },
    NamePair { names: ["\u{f6}", "\u{d6}"], why: "does not tell small letters from capitals beyond ASCII" },
    NamePair { names: ["\u{e9}", "e\u{301}"], why: "brings names to a normal form of Unicode" },
    NamePair { names: ["\u{fb01}x", "fix"], why: "brings names to a compatible form of Unicode" },
    NamePair { names: ["\u{df}y", "ssy"], why: "folds letters into others" },
    NamePair { names: ["join", "jo\u{200d}in"], why: "leaves out characters that are not seen" },
    NamePair { names: ["dot", "dot."], why: "leaves out dots at the end of names" },
    NamePair { names: ["blank", "blank "], why: "leaves out blanks at the end of names" },
];

/// A directory in which names can be tried.
pub trait NameDirectory: Send {
    /// Makes a file that is not there.
    fn make(&mut self, name: &str) -> io::Result<()>;
    /// All that are there.
    fn names(&mut self) -> io::Result<Vec<OsString>>;
}

/// Makes one that is empty.
pub type MakeMedium = dyn Fn() -> Box<dyn NameDirectory> + Send + Sync;

/// Why two names would be one; `None` where the store tells all apart. A name that can't be created at all is no other
/// name's.
///
/// # Errors
/// When nobody can tell.
fn look(medium: &mut (impl NameDirectory + ?Sized)) -> io::Result<Option<&'static str>> {
    if is_planted(PlantedBug::FoldedNamesAccepted) {
        return Ok(None);
    }
    let mut made = BTreeSet::new();
    for NamePair { names, why: reason } in &PAIRS {
        for name in names {
            match medium.make(name) {
                Ok(()) => drop(made.insert(OsString::from(name))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Some(*reason)),
                // Some take no such name: an object of that name is then refused by the store itself.
                Err(error) if is_about_name(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let listed: BTreeSet<OsString> = medium.names()?.into_iter().collect();
    Ok((listed != made).then_some("returns names in another form than they were created in"))
}

fn is_about_name(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let about = [Errno::INVAL, Errno::ILSEQ, Errno::NAMETOOLONG, Errno::NOENT, Errno::ACCESS, Errno::PERM];
    about.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A folder of its own in a directory. It goes with this.
struct NameTrial {
    folder: Folder,
    path: PathBuf,
}

impl NameTrial {
    fn make(directory: &Path) -> io::Result<NameTrial> {
        let name = underlay_files::unique_name(TRIAL);
        let folder = Folder::open(directory)?.make_inner(&name, Access::Private)?;
        let path = folder.path().to_owned();
        Ok(NameTrial { folder, path })
    }
}

impl Drop for NameTrial {
    fn drop(&mut self) {
        if let Err(error) = underlay_files::remove_tree(&self.path) {
            tracing::warn!("cannot remove {}, which nobody needs: {error}", self.path.display());
        }
    }
}

impl NameDirectory for NameTrial {
    fn make(&mut self, name: &str) -> io::Result<()> {
        match self.folder.has(name) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => self.folder.file(name).map(drop),
        }
    }

    fn names(&mut self) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(std::fs::File::open(&self.path)?)?;
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }
}

impl StoreBackend {
    /// Why two keys could be one object in its directory; `None` where they can't. Blocks.
    ///
    /// # Errors
    /// When nothing can be tried there.
    pub(crate) fn find_alias_reason(&self) -> io::Result<Option<&'static str>> {
        match &self.medium {
            Some(medium) => look(&mut *medium()),
            None => self.root().map_or(Ok(None), |(root, _)| look_at(root)),
        }
    }

    /// The same, whose names are tried in what this makes: a simulation has no file system that takes two names for
    /// one.
    #[must_use]
    pub fn trying_names_in(self, medium: Arc<MakeMedium>) -> StoreBackend {
        StoreBackend { medium: Some(medium), ..self }
    }
}

fn look_at(directory: &Path) -> io::Result<Option<&'static str>> {
    look(&mut NameTrial::make(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that takes each name for what this makes of it.
    struct Folding {
        fold: fn(&str) -> String,
        /// Whether it gives back what it has made of it, as opposed to the name.
        gives_folded: bool,
        names: Vec<(String, String)>,
    }

    impl Folding {
        fn by(fold: fn(&str) -> String) -> Folding {
            Folding { fold, gives_folded: false, names: Vec::new() }
        }
    }

    impl NameDirectory for Folding {
        fn make(&mut self, name: &str) -> io::Result<()> {
            let folded = (self.fold)(name);
            if self.names.iter().any(|(_, existing)| *existing == folded) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.names.push((name.to_owned(), folded));
            Ok(())
        }

        fn names(&mut self) -> io::Result<Vec<OsString>> {
            let listed =
                self.names.iter().map(|(name, folded)| if self.gives_folded { folded } else { name });
            Ok(listed.map(OsString::from).collect())
        }
    }

    #[test]
    fn directories_that_take_two_names_for_one_are_known() {
        let reason_for = |fold| look(&mut Folding::by(fold)).unwrap().unwrap_or_default();
        assert_eq!(look(&mut Folding::by(str::to_owned)).unwrap(), None);
        assert!(reason_for(|name| name.to_ascii_lowercase()).contains("capitals"));
        let beyond_ascii: fn(&str) -> String =
            |name| if name.is_ascii() { name.to_owned() } else { name.to_lowercase() };
        assert!(reason_for(beyond_ascii).contains("beyond ASCII"));
        assert!(reason_for(|name| name.replace("e\u{301}", "\u{e9}")).contains("normal form"));
        assert!(reason_for(|name| name.replace('\u{fb01}', "fi")).contains("compatible form"));
        assert!(reason_for(|name| name.replace('\u{df}', "ss")).contains("into others"));
        assert!(reason_for(|name| name.replace('\u{200d}', "")).contains("not seen"));
        assert!(reason_for(|name| name.trim_end_matches('.').to_owned()).contains("dots"));
        assert!(reason_for(|name| name.trim_end().to_owned()).contains("blanks"));
        // One that tells them apart, and lists another name than it was given.
        let mut other = Folding { gives_folded: true, ..Folding::by(|name| format!("{name}'")) };
        assert!(look(&mut other).unwrap().unwrap().contains("another form"));
    }

    /// A directory without a name that it can't have is as good as another.
    struct Strict(Vec<String>);

    impl NameDirectory for Strict {
        fn make(&mut self, name: &str) -> io::Result<()> {
            match name.contains('\u{200d}') {
                true => Err(rustix::io::Errno::ILSEQ.into()),
                false => {
                    self.0.push(name.to_owned());
                    Ok(())
                }
            }
        }

        fn names(&mut self) -> io::Result<Vec<OsString>> {
            Ok(self.0.iter().map(OsString::from).collect())
        }
    }

    #[test]
    fn impossible_name_is_not_folded() {
        assert_eq!(look(&mut Strict(Vec::new())).unwrap(), None);
    }

    #[test]
    fn name_trial_leaves_nothing() {
        assert!(TRIAL.starts_with(crate::store::names::NO_KEY));
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(look_at(directory.path()).unwrap(), None, "a file system for tests tells names apart");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(look_at(&directory.path().join("none")).is_err());
    }
}
