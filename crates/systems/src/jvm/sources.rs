//! The Java sources, carried in the program.

use crate::compiled::JavaSources;

/// One file of the Java tree, by its path there.
macro_rules! java {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../jvm/src/main/java/", $path)))
    };
}

/// The child itself, and its driver in memory. Needs no library.
pub(crate) static CHILD: JavaSources = JavaSources {
    name: "jvm-child",
    files: &[
        java!("underlay/jvm/Conversation.java"),
        java!("underlay/jvm/Driver.java"),
        java!("underlay/jvm/Frame.java"),
        java!("underlay/jvm/MalformedFrame.java"),
        java!("underlay/jvm/MayConnect.java"),
        java!("underlay/jvm/MemoryDriver.java"),
        java!("underlay/jvm/NotDone.java"),
        java!("underlay/jvm/RecordFormat.java"),
        java!("underlay/jvm/RemoteConnection.java"),
        java!("underlay/jvm/RemoteService.java"),
        java!("underlay/jvm/Reply.java"),
        java!("underlay/jvm/Request.java"),
        java!("underlay/jvm/Server.java"),
        java!("underlay/jvm/Values.java"),
    ],
};

/// The property that lists what the child may connect to, regardless of its driver: see `MayConnect.java`.
pub const MAY_CONNECT: &str = "may-connect";

/// The driver that keeps records in the child's own memory, for measuring the overhead and testing operations.
pub const MEMORY_DRIVER: &str = "underlay.jvm.MemoryDriver";

/// The driver for Accumulo: compiled against the child's classes and the jars of Accumulo's client.
pub(crate) static ACCUMULO: JavaSources = JavaSources {
    name: "accumulo-driver",
    files: &[
        java!("underlay/accumulo/AccumuloDriver.java"),
        java!("underlay/accumulo/InstanceFigures.java"),
        java!("underlay/accumulo/RecordClient.java"),
        java!("underlay/accumulo/RecordTable.java"),
        java!("underlay/accumulo/Writes.java"),
    ],
};

/// The driver's class, which documents its properties.
pub(crate) const ACCUMULO_DRIVER: &str = "underlay.accumulo.AccumuloDriver";

/// The drivers for Berkeley DB JE: compiled against the child's classes and JE.
pub(crate) static JE: JavaSources = JavaSources {
    name: "je-drivers",
    files: &[
        java!("underlay/je/Configuration.java"),
        java!("underlay/je/EmbeddedDriver.java"),
        java!("underlay/je/EnvironmentFigures.java"),
        java!("underlay/je/FirstRecords.java"),
        java!("underlay/je/GroupConnection.java"),
        java!("underlay/je/GroupDriver.java"),
        java!("underlay/je/Records.java"),
        java!("underlay/je/ReplicaDriver.java"),
        java!("underlay/je/ReplicaNode.java"),
        java!("underlay/je/Settling.java"),
        java!("underlay/je/Shard.java"),
    ],
};

/// The class of the driver that embeds JE, which documents its properties.
pub(crate) const JE_EMBEDDED_DRIVER: &str = "underlay.je.EmbeddedDriver";

/// The class of the driver that is a member of a replication group, and of the one that is the client of several
/// groups.
pub(crate) const JE_REPLICA_DRIVER: &str = "underlay.je.ReplicaDriver";
pub(crate) const JE_GROUP_DRIVER: &str = "underlay.je.GroupDriver";

/// The driver for Oracle NoSQL Database: compiled against the child's classes and the client of the user's own
/// installation.
pub(crate) static ORACLE_NOSQL: JavaSources = JavaSources {
    name: "oracle-nosql-driver",
    files: &[
        java!("underlay/oraclenosql/FieldRecords.java"),
        java!("underlay/oraclenosql/Records.java"),
        java!("underlay/oraclenosql/Requests.java"),
        java!("underlay/oraclenosql/StoreDriver.java"),
        java!("underlay/oraclenosql/ValueRecords.java"),
    ],
};

/// The driver's class, which documents its properties.
pub(crate) const ORACLE_NOSQL_DRIVER: &str = "underlay.oraclenosql.StoreDriver";
