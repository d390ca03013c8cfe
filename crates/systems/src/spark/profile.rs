//! What the system says of itself.

use crate::first_study::{FirstStudy, FirstWork};
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Spark",
    full_title: "Apache Spark",
    page: "systems/spark.md",
    starts: "workers or YARN, on HDFS or [Ceph](systems/ceph.md)",
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        fixed_memory: Some("4 GB"),
        settings: "datanodes = 1                     # of HDFS; store = \"s3a\" is Ceph, with a committer of its own\n\
                   executors = 2\n",
        room: 8.0,
        work: FirstWork::Jobs { jobs: r#"["teragen", "terasort", "teravalidate", "kmeans"]"# },
        ..FirstStudy::OF_JOBS
    }),
    ..SystemProfile::USUAL
};
