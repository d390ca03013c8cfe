//! A system's parts where its run does not record them: a run of an earlier version, or of too many parts.

use underlay_record::{
    DeviceDescription, DirectoryPart, KeptPart, NodeState, PartsRecord, PlannedCell, ServerPart,
    StorageRecord,
};

/// A cell of a plan may say any number.
const MAX_SERVERS: u32 = 64;

/// Each node, or each server, with all devices that it may use.
pub(super) fn parts(
    planned: Option<&PlannedCell>,
    nodes: &[NodeState],
    storage: &StorageRecord,
) -> PartsRecord {
    let system = planned.map_or("system", |planned| planned.cell.system.as_str());
    let servers = planned.map_or(1, |planned| planned.cell.servers).clamp(1, MAX_SERVERS);
    let mut parts = PartsRecord::default();
    for number in 1..=servers {
        let server = (servers > 1).then_some(number);
        // A device without a server is of a pool, which all servers share, or there is one server only.
        let is_own = |device: &&DeviceDescription| device.id.server == server || device.id.server.is_none();
        let own: Vec<&DeviceDescription> = storage.devices.iter().filter(is_own).collect();
        let mut roles: Vec<Option<&str>> = own.iter().map(|device| device.id.role.as_deref()).collect();
        roles.sort_unstable();
        roles.dedup();
        let mut kept_parts = Vec::new();
        for role in roles {
            let devices = own.iter().filter(|device| device.id.role.as_deref() == role);
            let name = role.unwrap_or("data").to_owned();
            kept_parts.push(KeptPart { what: name.clone(), directory: parts.directories.len() as u32 });
            parts.directories.push(DirectoryPart {
                name,
                server,
                volume: None,
                devices: devices.map(|device| device.id.clone()).collect(),
            });
        }
        let called = |name: &str, kind: &str| ServerPart {
            name: name.to_owned(),
            what: kind.to_owned(),
            server,
            keeps: kept_parts.clone(),
            ..ServerPart::default()
        };
        match (nodes.is_empty(), server) {
            (true, None) => parts.servers.push(called(system, "server")),
            (true, Some(number)) => parts.servers.push(called(&format!("{system} {number}"), "server")),
            (false, _) => parts.servers.extend(nodes.iter().map(|node| called(&node.name, "node"))),
        }
    }
    parts
}
