//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Hadoop",
    full_title: "Apache Hadoop",
    page: "systems/hadoop.md",
    starts: "HDFS, YARN, MapReduce",
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        fixed_memory: Some("1.6 GB"),
        settings: "datanodes = 1\n\
                   block_size = \"16 MiB\"             # small, as the data are: each block is a map task\n\
                   containers = 2                    # tasks at once\n",
        room: 6.0,
        ..FirstStudy::OF_JOBS
    }),
    ..SystemProfile::USUAL
};
