//! The child process for systems whose client is written in Java: a driver, which is one small Java type
//! (`jvm/src/main/java/underlay/jvm/SparkDriver.java`), behind the framed messages of [`crate::wire`]. Each thread of
//! the load generator
//! has one connection to the child, for which the child has one client of the system. A system that is a Java library
//! runs in such a process as a whole.

mod client;
mod hop;
mod process;
mod properties;
mod sources;

pub use client::JvmClient;
pub use process::{JvmChild, JvmSpec};
pub(crate) use sources::{
    ACCUMULO, ACCUMULO_DRIVER, JE, JE_EMBEDDED_DRIVER, JE_GROUP_DRIVER, JE_REPLICA_DRIVER, ORACLE_NOSQL,
    ORACLE_NOSQL_DRIVER,
};
pub use sources::{MAY_CONNECT, MEMORY_DRIVER};
