//! The versions of Spark that a study may choose between, and what each needs.

use crate::artifacts::{ArtifactList, SPARK, SPARK_4_1};
use crate::pid_namespace::NamespaceMounts;
use crate::setting::{OneOf, SettingKind as _};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SparkVersion {
    V3_5,
    V4_1,
}

pub(super) const VERSIONS: OneOf<SparkVersion> =
    OneOf(&[("3.5", SparkVersion::V3_5), ("4.1", SparkVersion::V4_1)]);

impl SparkVersion {
    /// As studies write it.
    pub(super) fn name(self) -> String {
        VERSIONS.show(&self)
    }

    /// The packages for pip, each with its version and hashes.
    pub(super) fn packages(self) -> &'static str {
        match self {
            SparkVersion::V3_5 => include_str!("requirements.txt"),
            SparkVersion::V4_1 => include_str!("requirements-4.1.txt"),
        }
    }

    /// The version of PySpark among these.
    pub(super) fn full(self) -> Option<&'static str> {
        let of_spark = |line: &'static str| line.strip_prefix("pyspark==")?.split_whitespace().next();
        self.packages().lines().find_map(of_spark)
    }

    /// The Pythons that PySpark and the files on its list are for.
    pub(super) fn pythons(self) -> &'static [(u32, u32)] {
        match self {
            SparkVersion::V3_5 => &[(3, 9), (3, 10), (3, 11)],
            SparkVersion::V4_1 => &[(3, 10), (3, 11)],
        }
    }

    /// Its jars besides PySpark, which brings its own.
    pub(super) fn jars(self) -> &'static ArtifactList {
        match self {
            SparkVersion::V3_5 => &SPARK,
            SparkVersion::V4_1 => &SPARK_4_1,
        }
    }

    /// The jar among these with the texts of queries.
    pub(super) fn queries(self) -> &'static str {
        match self {
            SparkVersion::V3_5 => "spark-sql_2.12-3.5.7-tests.jar",
            SparkVersion::V4_1 => "spark-sql_2.13-4.1.1-tests.jar",
        }
    }

    /// Of Scala, which Spark's launcher would look for among build directories.
    pub(super) fn scala(self) -> &'static str {
        match self {
            SparkVersion::V3_5 => "2.12",
            SparkVersion::V4_1 => "2.13",
        }
    }

    /// Of a worker and its executors: 4.1 looks for the Python processes of its executors in `/proc`, which must be
    /// that of their namespace.
    pub(super) fn mounts(self) -> NamespaceMounts {
        match self {
            SparkVersion::V3_5 => NamespaceMounts::Shared,
            SparkVersion::V4_1 => NamespaceMounts::Own,
        }
    }

    /// Whether its S3A can talk to this version of Ceph over TLS alone. Amazon's second SDK signs what it sends part by
    /// part over plain HTTP, and Ceph rejects such a request when it is empty; the first one can be set to sign in
    /// another way.
    pub(super) fn needs_tls(self) -> bool {
        self == SparkVersion::V4_1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_files_in_their_lists() {
        for &(name, version) in VERSIONS.0 {
            let full = version.full().unwrap();
            assert!(full.starts_with(&format!("{name}.")), "{full}");
            let files = version.jars().files().unwrap();
            assert!(files.iter().any(|file| file.name == version.queries()), "{name}");
            let cloud = format!("spark-hadoop-cloud_{}-{full}.jar", version.scala());
            assert!(files.iter().any(|file| file.name == cloud), "{cloud}");
            for line in version.packages().replace("\\\n", " ").lines() {
                let is_a_package = !line.is_empty() && !line.starts_with('#');
                assert!(!is_a_package || line.contains("==") && line.contains("--hash=sha256:"), "{line}");
            }
        }
    }
}
