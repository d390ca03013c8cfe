//! Java programs, fetched from a Maven repository by `mvn` into a cache that all runs share.
//!
//! A list is a folder here: `pom.xml` says what is wanted, `locked.txt` which files that is, with the size and the
//! SHA-256 of each (`scripts/lock-artifacts` writes it). All downloads of Maven are compared with the list before each
//! use: nothing else is ever on a class path. If this process is root, Maven runs as `nobody`. The network is only
//! needed the first time.
//!
//! The cache is `$UNDERLAY_CACHE`, or `underlay` in `$XDG_CACHE_HOME` or `~/.cache`. Files are downloaded to a staging
//! folder, which is renamed when it is complete. A second process that wants the same files waits for the first.

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
use crate::system::LoadProgress;

/// Cassandra, its dependencies and its command `nodetool`.
pub static CASSANDRA: ArtifactList = ArtifactList {
    name: "cassandra",
    pom: include_str!("cassandra/pom.xml"),
    locked: include_str!("cassandra/locked.txt"),
};

/// Accumulo's servers, ZooKeeper and Java client with their dependencies, but not the HDFS below them.
pub static ACCUMULO: ArtifactList = ArtifactList {
    name: "accumulo",
    pom: include_str!("accumulo/pom.xml"),
    locked: include_str!("accumulo/locked.txt"),
};

/// HDFS, YARN, MapReduce and the example jobs, with their dependencies.
pub(crate) static HADOOP: ArtifactList = ArtifactList {
    name: "hadoop",
    pom: include_str!("hadoop/pom.xml"),
    locked: include_str!("hadoop/locked.txt"),
};

/// Spark's jars besides PySpark, which brings its own: S3A, its committers, and the texts of queries.
pub(crate) static SPARK: ArtifactList = ArtifactList {
    name: "spark",
    pom: include_str!("spark/pom.xml"),
    locked: include_str!("spark/locked.txt"),
};

/// The same for Spark 4.1.
pub(crate) static SPARK_4_1: ArtifactList = ArtifactList {
    name: "spark-4.1",
    pom: include_str!("spark-4.1/pom.xml"),
    locked: include_str!("spark-4.1/locked.txt"),
};

/// Apache Iceberg for Spark, and the database in memory that its catalog is kept in.
pub(crate) static ICEBERG: ArtifactList = ArtifactList {
    name: "iceberg",
    pom: include_str!("iceberg/pom.xml"),
    locked: include_str!("iceberg/locked.txt"),
};

/// Alluxio's servers, with the stores that they can reach.
pub(crate) static ALLUXIO: ArtifactList = ArtifactList {
    name: "alluxio",
    pom: include_str!("alluxio/pom.xml"),
    locked: include_str!("alluxio/locked.txt"),
};

/// Its client, which is on the class path of others and has its dependencies under names of its own.
pub(crate) static ALLUXIO_CLIENT: ArtifactList = ArtifactList {
    name: "alluxio-client",
    pom: include_str!("alluxio-client/pom.xml"),
    locked: include_str!("alluxio-client/locked.txt"),
};

/// Berkeley DB Java Edition, which depends on nothing else.
pub(crate) static JE: ArtifactList =
    ArtifactList { name: "je", pom: include_str!("je/pom.xml"), locked: include_str!("je/locked.txt") };

/// YCSB's own client with only the binding that does nothing, for comparison.
pub static YCSB: ArtifactList =
    ArtifactList { name: "ycsb", pom: include_str!("ycsb/pom.xml"), locked: include_str!("ycsb/locked.txt") };

/// Files that are fetched together.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactList {
    pub name: &'static str,
    /// Maven's project file: what is wanted.
    pub pom: &'static str,
    /// The files that this means, one per line.
    pub locked: &'static str,
}

impl ArtifactList {
    /// Every file of the list, with its size and hash.
    ///
    /// # Errors
    /// When a line of the list can't be read.
    pub fn files(&self) -> Result<Vec<LockedFile>, ArtifactError> {
        locked::parse(self.locked).map_err(|(line, problem)| ArtifactError::List {
            list: self.name,
            line,
            problem,
        })
    }

    /// The version in the name of the artifact `artifact`, as in `cassandra-all-5.0.9.jar`.
    pub(crate) fn version_of(&self, artifact: &str) -> Option<String> {
        self.files().ok()?.iter().find_map(|file| {
            let rest = file.name.strip_suffix(".jar")?.strip_prefix(artifact)?.strip_prefix('-')?;
            rest.starts_with(|letter: char| letter.is_ascii_digit()).then(|| rest.to_owned())
        })
    }

    /// The directory that holds exactly the files of the list. They are fetched if they aren't there yet.
    ///
    /// # Errors
    /// When they can't be fetched or stored, or are not those of the list.
    pub fn directory(&self, progress: &dyn Fn(&LoadProgress)) -> Result<PathBuf, ArtifactError> {
        self.directory_in(&cache::root()?, progress)
    }

    /// Like [`directory`](Self::directory), in a cache other than the user's.
    ///
    /// # Errors
    /// Like there.
    pub fn directory_in(
        &self,
        cache: &std::path::Path,
        progress: &dyn Fn(&LoadProgress),
    ) -> Result<PathBuf, ArtifactError> {
        cache::ArtifactDirectory::new(self, cache)?.obtain(progress, &maven::fetch)
    }
}

/// The versions of the programs of `system` and of the Java that they run on. Each program comes with its list and the
/// artifact whose file name has the version. Unknown versions are left out.
pub fn versions(system: &'static str, programs: &[(&str, &ArtifactList, &str)]) -> BTreeMap<String, String> {
    let version = |&(program, list, artifact): &(&str, &ArtifactList, &str)| {
        Some((program.to_owned(), list.version_of(artifact)?))
    };
    let mut versions: BTreeMap<String, String> = programs.iter().filter_map(version).collect();
    versions.extend(Java::find(system).ok().map(|java| ("java".to_owned(), java.version)));
    versions
}
