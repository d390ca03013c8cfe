//! The parts of a cell's system, from its servers to the devices below their directories, for drawings.

use std::path::{Path, PathBuf};

use underlay_record::{DeviceId, DirectoryPart, KeptPart, PartsRecord, ServerPart};
use underlay_systems::parts::SystemPart;

use super::attached::CellStorages;
use super::cell_plan::CellPlan;
use super::storage::{self, server_number};
use crate::session::ServerSession;

/// Larger descriptions are left out, since they would leave no room in a line of the feed.
const MAX_BYTES: usize = 128 << 10;

/// A directory that a server was given.
#[derive(Clone, Debug)]
struct GivenDirectory {
    path: PathBuf,
    part: DirectoryPart,
}

/// `None` where the description would be too large.
pub(super) fn describe(
    plan: &CellPlan<'_>,
    session: &ServerSession,
    storages: &CellStorages,
) -> Option<PartsRecord> {
    let found = put_together(&plan.system.name, given(plan, storages), session.servers().parts());
    let bytes = serde_json::to_vec(&found).map_or(usize::MAX, |text| text.len());
    (bytes <= MAX_BYTES).then_some(found)
}

fn given(plan: &CellPlan<'_>, storages: &CellStorages) -> Vec<GivenDirectory> {
    let servers = plan.system.servers as usize;
    let mut all = Vec::new();
    for (server, attached) in storages.servers().iter().enumerate() {
        let below = storage::below_directories(&plan.storage, server, servers);
        let nodes = plan.storage.nodes.max(1) as usize;
        all.extend(given_to_one(attached.paths(), server_number(server, servers), below, nodes));
    }
    let roles = plan.roles();
    for (server, role, paths) in storages.directories_of_roles() {
        let own = roles.iter().find(|(name, _)| *name == role).map(|(_, storage)| *storage);
        let below = own.map(|own| storage::below_directories(own, server, servers)).unwrap_or_default();
        all.extend(
            paths.first().map(|path| given_to_role(path, role, server_number(server, servers), below)),
        );
    }
    all
}

/// The volume, where it is known, and the devices below a directory.
type DevicesBelow = (Option<String>, Vec<DeviceId>);

fn given_to_role(path: &Path, role: &str, server: Option<u32>, below: Vec<DevicesBelow>) -> GivenDirectory {
    let devices = below.into_iter().flat_map(|(_, devices)| devices);
    let devices = devices.map(|id| DeviceId { role: Some(role.to_owned()), ..id }).collect();
    let part = DirectoryPart { name: role.to_owned(), server, volume: None, devices };
    GivenDirectory { path: path.to_owned(), part }
}

/// The directories of a server, or of each of its nodes, in their order.
fn given_to_one(
    paths: &[PathBuf],
    server: Option<u32>,
    below: Vec<DevicesBelow>,
    nodes: usize,
) -> Vec<GivenDirectory> {
    let of_a_node = (paths.len() / nodes).max(1);
    let name = |place: usize| {
        let data = match of_a_node {
            1 => "data".to_owned(),
            _ => format!("data {}", place % of_a_node + 1),
        };
        if nodes > 1 { format!("node {}: {data}", place / of_a_node + 1) } else { data }
    };
    let below = below.into_iter().chain(std::iter::repeat((None, Vec::new())));
    let each = paths.iter().zip(below).enumerate();
    each.map(|(place, (path, (volume, devices)))| GivenDirectory {
        path: path.clone(),
        part: DirectoryPart { name: name(place), server, volume, devices },
    })
    .collect()
}

/// `of_servers` has the parts of each server; empty for a server that is one process with all of its directories.
fn put_together(
    system: &str,
    directories: Vec<GivenDirectory>,
    of_servers: &[Vec<SystemPart>],
) -> PartsRecord {
    let mut servers = Vec::new();
    for (index, parts) in of_servers.iter().enumerate() {
        let server = server_number(index, of_servers.len());
        let own = || (0..).zip(&directories).filter(move |(_, one)| one.part.server == server);
        // There may be several above it: the closest counts.
        let directory_of = |path: &Path| {
            let above = own().filter(|(_, one)| path.starts_with(&one.path));
            above.max_by_key(|(_, one)| one.path.as_os_str().len()).map(|(place, _)| place)
        };
        let called = |name: &str| match server {
            Some(server) => format!("{name} {server}"),
            None => name.to_owned(),
        };
        if parts.is_empty() {
            let kept_part = |(directory, one): (u32, &GivenDirectory)| KeptPart {
                what: one.part.name.clone(),
                directory,
            };
            servers.push(ServerPart {
                name: called(system),
                what: "server".to_owned(),
                server,
                keeps: own().map(kept_part).collect(),
                ..ServerPart::default()
            });
        }
        servers.extend(parts.iter().map(|part| {
            let kept_part = |(content, path): &(String, PathBuf)| {
                Some(KeptPart { what: content.clone(), directory: directory_of(path)? })
            };
            ServerPart {
                name: called(&part.name),
                what: part.what.to_owned(),
                server,
                machine: part.machine.as_deref().map(called),
                is_background: part.is_background,
                uses: part.uses.iter().map(|name| called(name)).collect(),
                keeps: part.keeps.iter().filter_map(kept_part).collect(),
            }
        }));
    }
    PartsRecord { servers, directories: directories.into_iter().map(|one| one.part).collect() }
}

#[cfg(test)]
mod tests;
