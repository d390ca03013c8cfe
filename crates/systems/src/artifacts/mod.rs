//! Java programs, fetched from a Maven repository by `mvn` into a cache that all runs share.
//!
//! A list is a folder here: `pom.xml` says what is wanted, `locked.txt` says which files that is, with the size and the
//! SHA-256 of each (`scripts/lock-artifacts` writes it). Whatever Maven brings is held against the list before it is
//! used, and once more at every later use: nothing else is ever on a class path. For root, Maven
//! runs as `nobody`. After the first time no network is needed.
//!
//! The cache is `$UNDERLAY_CACHE`, or else `underlay` in `$XDG_CACHE_HOME` or in `~/.cache`. A fetch goes to a place of
//! its own and takes its name when it is complete, and a second process that wants the same waits for the first.

pub(crate) mod cache;
mod error;
mod locked;
mod maven;
mod maven_home;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use error::ArtifactError;
pub use locked::LockedFile;

use crate::java::Java;
use crate::system::Progress;

/// The files that Cassandra runs on, its command `nodetool` among them.
pub static CASSANDRA: ArtifactList = ArtifactList {
    name: "cassandra",
    pom: include_str!("cassandra/pom.xml"),
    locked: include_str!("cassandra/locked.txt"),
};

/// The files that Accumulo runs on, its servers, its ZooKeeper and its Java client, without the HDFS below them.
pub static ACCUMULO: ArtifactList = ArtifactList {
    name: "accumulo",
    pom: include_str!("accumulo/pom.xml"),
    locked: include_str!("accumulo/locked.txt"),
};

/// The files that HDFS, YARN and MapReduce run on, the example jobs among them.
pub static HADOOP: ArtifactList = ArtifactList {
    name: "hadoop",
    pom: include_str!("hadoop/pom.xml"),
    locked: include_str!("hadoop/locked.txt"),
};

/// The files that YCSB's own client runs on, with no binding but the one that does nothing: a peer to compare with.
pub static YCSB: ArtifactList =
    ArtifactList { name: "ycsb", pom: include_str!("ycsb/pom.xml"), locked: include_str!("ycsb/locked.txt") };

/// Files that belong together.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactList {
    pub name: &'static str,
    /// Maven's project file: what is wanted.
    pub pom: &'static str,
    /// What that is, one file a line.
    pub locked: &'static str,
}

impl ArtifactList {
    /// Every file of the list, as it must be.
    pub fn files(&self) -> Result<Vec<LockedFile>, ArtifactError> {
        locked::parse(self.locked).map_err(|(line, problem)| ArtifactError::List {
            list: self.name,
            line,
            problem,
        })
    }

    /// The version in the name of the artifact `artifact`, as in `cassandra-all-5.0.9.jar`.
    pub fn version_of(&self, artifact: &str) -> Option<String> {
        self.files().ok()?.iter().find_map(|file| {
            let rest = file.name.strip_suffix(".jar")?.strip_prefix(artifact)?.strip_prefix('-')?;
            rest.starts_with(|letter: char| letter.is_ascii_digit()).then(|| rest.to_owned())
        })
    }

    /// The directory that holds exactly the files of the list, fetched if they are not there yet.
    pub fn directory(&self, progress: &dyn Fn(&Progress)) -> Result<PathBuf, ArtifactError> {
        self.directory_in(&cache::root()?, progress)
    }

    /// [`directory`](Self::directory) in a cache other than the user's.
    pub fn directory_in(
        &self,
        cache: &std::path::Path,
        progress: &dyn Fn(&Progress),
    ) -> Result<PathBuf, ArtifactError> {
        cache::Place::of(self, cache)?.obtain(progress, &maven::fetch)
    }
}

/// The versions of programs of `system`, each by the artifact of a list that has it in its name, and of the Java that they run
/// on. What can't be found is left out.
pub fn versions(system: &'static str, programs: &[(&str, &ArtifactList, &str)]) -> BTreeMap<String, String> {
    let version = |&(program, list, artifact): &(&str, &ArtifactList, &str)| {
        Some((program.to_owned(), list.version_of(artifact)?))
    };
    let mut versions: BTreeMap<String, String> = programs.iter().filter_map(version).collect();
    versions.extend(Java::find(system).ok().map(|java| ("java".to_owned(), java.version)));
    versions
}
