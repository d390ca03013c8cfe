//! The administration's reports on a store in JSON.

use serde::Deserialize;
use underlay_record::NodeRole;

/// The answer to a command: `returnValue` is the report, if there is one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdminAnswer<T> {
    #[serde(default)]
    description: String,
    return_value: Option<T>,
}

/// The output of `show topology`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreTopology {
    #[serde(default)]
    pub num_partitions: u64,
    #[serde(default)]
    pub zns: Vec<NamedResource>,
    #[serde(default)]
    pub sns: Vec<NamedResource>,
    #[serde(default)]
    pub shards: Vec<ReplicationShard>,
}

/// A zone or a storage node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NamedResource {
    /// `zn1` or `sn2`
    pub resource_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplicationShard {
    /// `rg1`
    pub resource_id: String,
    pub num_partitions: u64,
    pub rns: Vec<ReplicationNode>,
}

/// A replication node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplicationNode {
    /// `rg1-rn2`
    pub resource_id: String,
    /// `sn2`
    pub sn_id: String,
}

/// The output of `ping` and `verify configuration`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreStatus {
    shard_status: ShardHealth,
    #[serde(default)]
    admin_status: String,
    #[serde(default)]
    sn_status: Vec<NodeStatus>,
    #[serde(default)]
    violations: Vec<VerifyFinding>,
    #[serde(default)]
    warnings: Vec<VerifyFinding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct ShardHealth {
    healthy: u64,
    total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    resource_id: String,
    #[serde(default)]
    rn_status: Vec<ReplicaStatus>,
}

/// How a replication node is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplicaStatus {
    pub resource_id: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    state: Option<String>,
    /// Of the last change that it has.
    #[serde(default)]
    pub sequence_number: Option<u64>,
    #[serde(default)]
    network_restore_underway: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerifyFinding {
    #[serde(default)]
    resource_id: String,
    description: String,
}

impl ReplicaStatus {
    pub(super) fn role(&self) -> Option<NodeRole> {
        match self.state.as_deref() {
            Some("MASTER") => Some(NodeRole::Master),
            Some("REPLICA") => Some(NodeRole::Replica),
            _ => None,
        }
    }

    pub(super) fn serves(&self) -> bool {
        self.status == "RUNNING" && self.role().is_some() && !self.network_restore_underway
    }
}

impl StoreStatus {
    /// Whether so many shards and all their replication nodes serve, and the administration does.
    pub(super) fn is_healthy(&self, shards: u64, replication_nodes: u64) -> bool {
        let serving = self.replicas().filter(|(_, replica)| replica.serves()).count() as u64;
        self.shard_status.healthy == shards
            && self.shard_status.total == shards
            && serving == replication_nodes
            && self.admin_status == "healthy"
    }

    /// Each replication node with the name of its storage node.
    pub(super) fn replicas(&self) -> impl Iterator<Item = (&str, &ReplicaStatus)> {
        let of_node = |node: &'_ NodeStatus| node.rn_status.len();
        self.sn_status
            .iter()
            .filter(move |node| of_node(node) > 0)
            .flat_map(|node| node.rn_status.iter().map(|replica| (node.resource_id.as_str(), replica)))
    }

    /// The last change that the master of this shard has.
    pub(super) fn last_of(&self, shard: &str) -> Option<u64> {
        let of_shard = |replica: &&ReplicaStatus| shard_of(&replica.resource_id) == shard;
        let masters = self.replicas().map(|(_, replica)| replica).filter(of_shard);
        masters.filter(|replica| replica.role() == Some(NodeRole::Master)).find_map(|one| one.sequence_number)
    }

    /// Its findings of problems.
    pub(super) fn findings(&self) -> Vec<String> {
        let findings = self.violations.iter().chain(&self.warnings);
        findings.map(|finding| format!("{}: {}", finding.resource_id, finding.description)).collect()
    }

    /// How it stands with each replication node, for an error.
    pub(super) fn describe(&self) -> String {
        let word = |(_, replica): (&str, &ReplicaStatus)| {
            let role = replica.role().map(|role| format!(", {role}")).unwrap_or_default();
            format!("{} {}{role}", replica.resource_id, replica.status)
        };
        let all: Vec<String> = self.replicas().map(word).collect();
        if all.is_empty() { "no replication node answers".to_owned() } else { all.join("; ") }
    }
}

/// `rg1` of `rg1-rn2`
pub(super) fn shard_of(replication_node: &str) -> &str {
    replication_node.split('-').next().unwrap_or_default()
}

/// The number in `rg1` or `sn1`.
pub(super) fn number_of(name: &str) -> Option<u64> {
    name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().ok()
}

/// The report in what a command printed, perhaps below other lines.
pub(super) fn parse<T: serde::de::DeserializeOwned>(printed: &str) -> Result<T, String> {
    let first_line = printed.lines().position(|line| line.starts_with('{'));
    let Some(first_line) = first_line else {
        let last = printed.lines().map(str::trim).rfind(|line| !line.is_empty());
        return Err(last.unwrap_or("it printed nothing").to_owned());
    };
    let text: String = printed.lines().skip(first_line).flat_map(|line| [line, "\n"]).collect();
    let mut answers = serde_json::Deserializer::from_str(&text).into_iter::<AdminAnswer<T>>();
    match answers.next() {
        Some(Ok(AdminAnswer { return_value: Some(report), .. })) => Ok(report),
        Some(Ok(AdminAnswer { description, .. })) => Err(description),
        Some(Err(error)) => Err(format!("its answer can't be read: {error}")),
        None => Err("it printed nothing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGY: &str = r#"Connected to Admin in read-only mode
{
  "operation": "show topology",
  "returnCode": 5000,
  "description": "Operation ends successfully",
  "returnValue": {
    "storeName": "underlay",
    "numPartitions": 20,
    "sns": [{ "resourceId": "sn1", "rns": [{ "resourceId": "rg1-rn1" }] }],
    "shards": [{
      "resourceId": "rg1", "numPartitions": 20, "ans": [],
      "rns": [{ "resourceId": "rg1-rn1", "snId": "sn1" }, { "resourceId": "rg1-rn2", "snId": "sn2" }]
    }]
  }
}
"#;

    fn status(second: &str) -> String {
        format!(
            r#"{{ "operation": "verify configuration", "returnCode": 5200, "description": "There are violations.", "returnValue": {{
                "shardStatus": {{ "healthy": 1, "writable-degraded": 0, "total": 1 }}, "adminStatus": "healthy",
                "snStatus": [
                    {{ "resourceId": "sn1", "rnStatus": [
                        {{ "resourceId": "rg1-rn1", "status": "RUNNING", "state": "MASTER", "sequenceNumber": 114 }} ] }},
                    {{ "resourceId": "sn2", "rnStatus": [ {second} ] }}],
                "violations": [{{ "resourceId": "zn1", "description": "zn1 needs 2 Admins" }}], "warnings": [] }} }}"#
        )
    }

    #[test]
    fn reports_are_read() {
        let topology: StoreTopology = parse(TOPOLOGY).unwrap();
        assert_eq!((topology.num_partitions, topology.shards.len()), (20, 1));
        assert_eq!(topology.shards[0].rns[1].sn_id, "sn2");
        assert_eq!((shard_of("rg12-rn3"), number_of("sn12"), number_of("sn")), ("rg12", Some(12), None));
        let status_with = |second: &str| parse::<StoreStatus>(&status(second)).unwrap();
        let replica =
            r#"{ "resourceId": "rg1-rn2", "status": "RUNNING", "state": "REPLICA", "sequenceNumber": 99 }"#;
        let healthy = status_with(replica);
        assert!(healthy.is_healthy(1, 2) && !healthy.is_healthy(1, 3) && !healthy.is_healthy(2, 2));
        assert_eq!((healthy.last_of("rg1"), healthy.last_of("rg2")), (Some(114), None));
        assert_eq!(healthy.findings(), ["zn1: zn1 needs 2 Admins"]);
        let starting =
            status_with(r#"{ "resourceId": "rg1-rn2", "status": "STARTING", "state": "UNKNOWN" }"#);
        assert!(!starting.is_healthy(1, 2));
        assert_eq!(starting.describe(), "rg1-rn1 RUNNING, master; rg1-rn2 STARTING");
        let restoring =
            replica.replace("\"sequenceNumber\"", "\"networkRestoreUnderway\": true, \"sequenceNumber\"");
        assert!(!status_with(&restoring).is_healthy(1, 2));
    }

    #[test]
    fn invalid_report_is_an_error_quoting_it() {
        let error = |printed: &str| parse::<StoreStatus>(printed).unwrap_err();
        assert_eq!(error("\nCannot connect to any admins.\n\n"), "Cannot connect to any admins.");
        assert_eq!(error(""), "it printed nothing");
        assert_eq!(
            error(r#"{ "returnCode": 5300, "description": "no admins", "returnValue": null }"#),
            "no admins"
        );
        assert!(error("{").contains("can't be read"));
        assert!(error(r#"{ "returnValue": { "shardStatus": 1 } }"#).contains("can't be read"));
    }
}
