//! The connection to a cluster, which all clients share: the driver's session, the table and the prepared statements.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use openssl::ssl::{SslConnector, SslConnectorBuilder, SslMethod, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::{OpenSsl010Config, Session};
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::Node;
use scylla::cluster::metadata::Peer;
use scylla::errors::{ExecutionError, PrepareError};
use scylla::policies::host_filter::HostFilter;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryRowsResult;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use tokio::runtime::Runtime;
use underlay_sync::RwLock;

use super::config::CassandraConfig;
use super::table::{CassandraTable, KEYSPACE, TableRequest};
use crate::connect_allowlist::{self, ConnectAllowlist};

/// Threads that transfer data between the sockets and the threads of the load. The latter wait for their own answers.
const DRIVER_THREADS: usize = 2;
/// Each carries up to 32,768 requests at once. A second one keeps a large answer from delaying all others.
const CONNECTIONS_PER_NODE: NonZeroUsize = NonZeroUsize::new(2).unwrap();
/// Creating a table waits until all nodes agree on the schema.
const SCHEMA_LIMIT: Duration = Duration::from_secs(120);
const COMPACTIONS_RUNNING: &str = "current_compactions_running";

/// Figures of one node.
pub(super) type NodeMetrics = BTreeMap<String, f64>;

/// Where the cluster is and how to talk to it.
#[derive(Clone, Debug)]
pub(super) struct ClusterTarget<'a> {
    /// `ADDRESS:PORT`. One is enough, since the cluster reports its other nodes.
    pub endpoints: Vec<String>,
    pub config: &'a CassandraConfig,
    pub fields: u32,
    /// How long a request may take.
    pub timeout: Duration,
    /// Whether the cluster was started here, so that a table with other options may be altered.
    pub ours: bool,
    pub credentials: Option<ClusterCredentials>,
    /// The connect allowlist, and the allowed addresses of the endpoints. `None`: anything.
    pub allowed: Option<(ConnectAllowlist, Vec<SocketAddr>)>,
}

/// A user of the cluster.
#[derive(Clone)]
pub(super) struct ClusterCredentials {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for ClusterCredentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ClusterCredentials").field("username", &self.username).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DatabaseError {
    #[error("can't start the threads of the client: {0}")]
    Threads(#[source] std::io::Error),
    #[error("the certificate authorities in {path} can't be used: {problem}")]
    Authorities { path: String, problem: String },
    #[error("the cluster requires a user and a password")]
    NoCredentials,
    #[error("can't connect to {endpoints}: {problem}")]
    Connect { endpoints: String, problem: String },
    /// Nodes that the cluster has reported.
    #[error("the cluster has other nodes, and {}", connect_allowlist::not_listed(.0))]
    NotListed(Vec<String>),
    /// Cassandra's error for a statement.
    #[error("{statement}: {problem}")]
    Statement { statement: String, problem: String },
    #[error(
        "the table {KEYSPACE}.{table} exists and has {setting} = {found}: set it to that, or drop the table so that it is created again"
    )]
    Different { table: &'static str, setting: &'static str, found: String },
}

/// A session with its table.
pub(super) struct CassandraSession {
    runtime: Runtime,
    session: Session,
    table: CassandraTable,
    prepared: RwLock<HashMap<TableRequest, PreparedStatement>>,
}

impl CassandraSession {
    /// Connects, and creates the keyspace and the table if they don't exist.
    pub(super) fn open(target: &ClusterTarget<'_>) -> Result<CassandraSession, DatabaseError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(DRIVER_THREADS)
            .thread_name("cassandra-client")
            .enable_all()
            .build()
            .map_err(DatabaseError::Threads)?;
        let session = runtime.block_on(builder(target)?.build()).map_err(|error| {
            let mut problem = error.to_string();
            if problem.contains("certificate verify failed") {
                problem.push_str(" (a node's certificate must come from an authority in tls_ca, and must name the address that the node is reached at)");
            }
            match target.credentials {
                // The driver's message advises programmers, not users.
                None if problem.contains("Authentication is required") => DatabaseError::NoCredentials,
                _ => DatabaseError::Connect { endpoints: target.endpoints.join(", "), problem },
            }
        })?;
        if let Some((allowed, _)) = &target.allowed {
            // Ignoring these nodes would put the load on a part of the cluster only.
            let state = session.get_cluster_state();
            let nodes = state.get_nodes_info().iter().map(|node| (node.address.ip(), node.address.port()));
            let strangers = connect_allowlist::strangers(allowed, nodes);
            if !strangers.is_empty() {
                return Err(DatabaseError::NotListed(strangers));
            }
        }
        let table = CassandraTable::new(target.config, target.fields);
        let database = CassandraSession { runtime, session, table, prepared: RwLock::default() };
        database.make_table(target.ours)?;
        Ok(database)
    }

    fn make_table(&self, ours: bool) -> Result<(), DatabaseError> {
        if ours || self.options_in_force()?.is_none() {
            self.query(&self.table.create_keyspace())?;
            self.query(&self.table.create())?;
        }
        let Some((compression, compaction)) = self.options_in_force()? else { return Ok(()) };
        match self.table.differences(&compression, &compaction).into_iter().next() {
            None => Ok(()),
            Some(_) if ours => self.query(&self.table.alter()).map(drop),
            Some((setting, found)) => {
                Err(DatabaseError::Different { table: self.table.name, setting, found })
            }
        }
    }

    /// The compression and compaction options of the existing table.
    #[expect(clippy::type_complexity, reason = "two equal maps have no better name")]
    fn options_in_force(
        &self,
    ) -> Result<Option<(BTreeMap<String, String>, BTreeMap<String, String>)>, DatabaseError> {
        let statement = format!(
            "SELECT compression, compaction FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE}' AND table_name = '{}'",
            self.table.name
        );
        let Some(rows) = self.query(&statement)? else { return Ok(None) };
        rows.maybe_first_row().map_err(|error| failed(&statement, &error))
    }

    /// Runs a statement that is not part of the load. Returns its rows if it has any.
    fn query(&self, statement: &str) -> Result<Option<QueryRowsResult>, DatabaseError> {
        let mut prepared = Statement::new(statement);
        prepared.set_request_timeout(Some(SCHEMA_LIMIT));
        self.query_statement(prepared, statement)
    }

    fn query_statement(
        &self,
        statement: Statement,
        text: &str,
    ) -> Result<Option<QueryRowsResult>, DatabaseError> {
        let result = self.runtime.block_on(self.session.query_unpaged(statement, &[]));
        let result = result.map_err(|error| failed(text, &error))?;
        if !result.is_rows() {
            return Ok(None);
        }
        result.into_rows_result().map(Some).map_err(|error| failed(text, &error))
    }

    /// Runs a statement on a particular node, since virtual tables describe only the node that answers.
    fn query_node(&self, node: &Arc<Node>, text: &str) -> Result<Option<QueryRowsResult>, DatabaseError> {
        let mut statement = Statement::new(text);
        let policy = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(Arc::clone(node)), None);
        statement.set_load_balancing_policy(Some(policy));
        statement.set_consistency(scylla::statement::Consistency::One);
        self.query_statement(statement, text)
    }

    /// Runs a future of the driver on the caller's thread.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn table(&self) -> &CassandraTable {
        &self.table
    }

    /// The prepared statement for a question. The first caller prepares it.
    pub(super) fn prepare(&self, question: &TableRequest) -> Result<PreparedStatement, PrepareError> {
        let cached = self.prepared.read().get(question).cloned();
        if let Some(prepared) = cached {
            return Ok(prepared);
        }
        let prepared = self.wait(self.session.prepare(self.table.statement(question)))?;
        let mut all = self.prepared.write();
        Ok(all.entry(question.clone()).or_insert(prepared).clone())
    }

    /// The figures of each node but those that are `absent`, from its virtual tables.
    pub(super) fn node_figures(
        &self,
        absent: &[IpAddr],
    ) -> Result<Vec<(IpAddr, NodeMetrics)>, DatabaseError> {
        let state = self.session.get_cluster_state();
        let present = state.get_nodes_info().iter().filter(|node| !absent.contains(&node.address.ip()));
        present.map(|node| Ok((node.address.ip(), self.figures_of(node)?))).collect()
    }

    fn figures_of(&self, node: &Arc<Node>) -> Result<NodeMetrics, DatabaseError> {
        let table = format!("keyspace_name = '{KEYSPACE}' AND table_name = '{}'", self.table.name);
        // Names with `current_` are states. All others count from the start, and measurements subtract.
        let mut figures = NodeMetrics::from([("current_nodes".to_owned(), 1.0)]);
        let mut put = |name: &str, number: f64| {
            figures.insert(name.to_owned(), number);
        };

        let text = "SELECT name, hit_count, request_count FROM system_views.caches";
        for (name, hits, requests) in self.node_rows::<(String, i64, i64)>(node, text)? {
            if let "keys" | "rows" | "chunks" = name.as_str() {
                let cache = name.trim_end_matches('s');
                put(&format!("{cache}_cache_hits"), hits as f64);
                put(&format!("{cache}_cache_requests"), requests as f64);
            }
        }
        for (kind, count) in [("read", "reads"), ("write", "writes")] {
            let text = format!(
                "SELECT count, p50th_ms, p99th_ms FROM system_views.local_{kind}_latency WHERE {table}"
            );
            for (total, p50_ms, p99_ms) in self.node_rows::<(i64, f64, f64)>(node, &text)? {
                put(count, total as f64);
                put(&format!("current_local_{kind}_p50_ms"), p50_ms);
                put(&format!("current_local_{kind}_p99_ms"), p99_ms);
            }
        }
        let text = format!("SELECT mebibytes FROM system_views.disk_usage WHERE {table}");
        for (mebibytes,) in self.node_rows::<(i64,)>(node, &text)? {
            put("current_table_bytes", mebibytes as f64 * f64::from(1 << 20));
        }
        let text = "SELECT name, active_tasks, pending_tasks, completed_tasks FROM system_views.thread_pools";
        for (name, active, pending, completed) in self.node_rows::<(String, i32, i32, i64)>(node, text)? {
            let waiting = f64::from(active) + f64::from(pending);
            match name.as_str() {
                "CompactionExecutor" => {
                    put("current_compaction_tasks", waiting);
                    put(COMPACTIONS_RUNNING, f64::from(active));
                }
                "ReadStage" => put("current_reads_waiting", waiting),
                "MutationStage" => put("current_writes_waiting", waiting),
                "MemtableFlushWriter" => put("flushes", completed as f64),
                _ => {}
            }
        }
        // The history is kept by an id, so rows of this keyspace are chosen here.
        let text = "SELECT keyspace_name, bytes_in, bytes_out FROM system.compaction_history";
        let (mut compactions, mut read_bytes, mut written_bytes) = (0.0, 0.0, 0.0);
        for (keyspace, bytes_in, bytes_out) in self.node_rows::<(String, i64, i64)>(node, text)? {
            if keyspace == KEYSPACE {
                compactions += 1.0;
                read_bytes += bytes_in as f64;
                written_bytes += bytes_out as f64;
            }
        }
        put("compactions", compactions);
        put("compaction_read_bytes", read_bytes);
        put("compaction_write_bytes", written_bytes);
        Ok(figures)
    }

    /// How many compactions are running on all nodes.
    pub(super) fn gauges(&self, absent: &[IpAddr]) -> Result<NodeMetrics, DatabaseError> {
        let running = self.compaction_threads(absent)?.iter().map(|(active, _)| f64::from(*active)).sum();
        Ok(NodeMetrics::from([(COMPACTIONS_RUNNING.to_owned(), running)]))
    }

    /// How many compactions are running or waiting for a thread on all nodes. The pending tasks of `nodetool
    /// compactionstats` can't be used: they are an estimate from the last time that a strategy looked for work, and
    /// stays after an interruption.
    pub(super) fn compaction_tasks(&self, absent: &[IpAddr]) -> Result<u64, DatabaseError> {
        let rows = self.compaction_threads(absent)?;
        let tasks =
            rows.iter().map(|(active, pending)| i64::from(*active) + i64::from(*pending)).sum::<i64>();
        Ok(tasks.max(0).unsigned_abs())
    }

    /// For each node, the compactions that are running and those that are waiting for a thread.
    fn compaction_threads(&self, absent: &[IpAddr]) -> Result<Vec<(i32, i32)>, DatabaseError> {
        let text = "SELECT active_tasks, pending_tasks FROM system_views.thread_pools WHERE name = 'CompactionExecutor'";
        let rows = self.rows_of_all::<(i32, i32)>(text, absent)?;
        if rows.is_empty() {
            return Err(failed(text, &"no node reports its compactions"));
        }
        Ok(rows)
    }

    /// Describes the running compactions.
    pub(super) fn compactions_under_way(&self, absent: &[IpAddr]) -> Result<Vec<String>, DatabaseError> {
        let text =
            "SELECT kind, keyspace_name, table_name, progress, total, unit FROM system_views.sstable_tasks";
        let rows = self.rows_of_all::<(String, String, String, i64, i64, String)>(text, absent)?;
        let words = |(kind, keyspace, table, progress, total, unit)| {
            format!("{kind} of {keyspace}.{table}, {progress} of {total} {unit} done")
        };
        Ok(rows.into_iter().map(words).collect())
    }

    /// The rows that all nodes but those that are `absent` return for a statement.
    fn rows_of_all<R>(&self, text: &str, absent: &[IpAddr]) -> Result<Vec<R>, DatabaseError>
    where
        R: for<'frame> scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    {
        let state = self.session.get_cluster_state();
        let mut all = Vec::new();
        for node in state.get_nodes_info().iter().filter(|node| !absent.contains(&node.address.ip())) {
            all.extend(self.node_rows(node, text)?);
        }
        Ok(all)
    }

    /// The rows that a particular node returns for a statement.
    fn node_rows<R>(&self, node: &Arc<Node>, text: &str) -> Result<Vec<R>, DatabaseError>
    where
        R: for<'frame> scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    {
        let Some(rows) = self.query_node(node, text)? else { return Ok(Vec::new()) };
        let typed = rows.rows::<R>().map_err(|error| failed(text, &error))?;
        typed.map(|row| row.map_err(|error| failed(text, &error))).collect()
    }
}

fn failed(statement: &str, problem: &dyn std::fmt::Display) -> DatabaseError {
    DatabaseError::Statement { statement: statement.to_owned(), problem: problem.to_string() }
}

fn builder(target: &ClusterTarget<'_>) -> Result<SessionBuilder, DatabaseError> {
    let profile = ExecutionProfile::builder()
        .consistency(target.config.consistency)
        .request_timeout(Some(target.timeout))
        // No retries: a failed request must count as failed, not as a slow one.
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .build();
    let mut builder = SessionBuilder::new()
        .default_execution_profile_handle(profile.into_handle())
        .pool_size(PoolSize::PerHost(CONNECTIONS_PER_NODE))
        .connection_timeout(target.timeout)
        .keepalive_timeout(target.timeout)
        .schema_agreement_timeout(SCHEMA_LIMIT)
        .keyspaces_to_fetch([KEYSPACE])
        .tcp_nodelay(true);
    builder = match &target.allowed {
        None => builder.known_nodes(&target.endpoints),
        // By address, since a name could resolve differently when the driver looks it up. And without ScyllaDB's second
        // port, which is not on the list.
        Some((allowed, addresses)) => builder
            .known_nodes_addr(addresses)
            .host_filter(Arc::new(ListedNodes(allowed.clone())))
            .disallow_shard_aware_port(true),
    };
    if let Some(datacenter) = &target.config.datacenter {
        builder = builder.prefer_datacenter(datacenter.clone());
    }
    if let Some(path) = &target.config.tls_ca {
        builder = builder.tls_context(Some(OpenSsl010Config::new(tls(path)?)));
    }
    if let Some(ClusterCredentials { username, password }) = &target.credentials {
        builder = builder.user(username, password);
    }
    Ok(builder)
}

/// Keeps the driver from connecting to nodes that the cluster reports, at first or later, but that are not on the list.
struct ListedNodes(ConnectAllowlist);

impl HostFilter for ListedNodes {
    fn accept(&self, peer: &Peer) -> bool {
        self.0.has(peer.address.ip(), peer.address.port())
    }
}

/// TLS that trusts only these authorities. A node's certificate must name the address that it is reached at.
fn tls(path: &Path) -> Result<SslConnectorBuilder, DatabaseError> {
    let unusable = |problem: String| DatabaseError::Authorities { path: path.display().to_string(), problem };
    let text = underlay_files::read(path, 16 << 20).map_err(|error| unusable(error.to_string()))?;
    let authorities = X509::stack_from_pem(&text).map_err(|error| unusable(error.to_string()))?;
    if authorities.is_empty() {
        return Err(unusable("it contains no certificate".to_owned()));
    }
    let build = || {
        let mut store = X509StoreBuilder::new()?;
        authorities.into_iter().try_for_each(|authority| store.add_cert(authority))?;
        let mut builder = SslConnector::builder(SslMethod::tls_client())?;
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        // Replaces the authorities that the host trusts.
        builder.set_cert_store(store.build());
        Ok::<_, openssl::error::ErrorStack>(builder)
    };
    build().map_err(|error| unusable(error.to_string()))
}

/// The error of a request: Cassandra's own message if there is one.
pub(super) fn words(error: &ExecutionError) -> String {
    use scylla::errors::RequestAttemptError;
    match error {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(kind, message))
            if message.is_empty() =>
        {
            kind.to_string()
        }
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(kind, message)) => {
            format!("{kind}: {message}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_that_are_none_are_named() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("ca.pem");
        assert!(tls(&path).err().unwrap().to_string().contains("ca.pem"));
        std::fs::write(&path, "no certificate").unwrap();
        assert!(tls(&path).err().unwrap().to_string().contains("contains no certificate"));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, broken).unwrap();
        assert!(tls(&path).err().unwrap().to_string().contains("can't be used"));
    }

    #[test]
    fn unreachable_cluster_is_named() {
        let config = CassandraConfig::default();
        // A port that was free a moment ago.
        let port = super::super::addresses::free_port().unwrap();
        let endpoint = format!("127.0.0.1:{port}");
        let target = ClusterTarget {
            endpoints: vec![endpoint.clone()],
            config: &config,
            fields: 1,
            timeout: Duration::from_secs(5),
            ours: true,
            credentials: None,
            allowed: None,
        };
        let error = CassandraSession::open(&target).err().unwrap().to_string();
        assert!(error.contains(&format!("can't connect to {endpoint}")), "{error}");
    }
}
