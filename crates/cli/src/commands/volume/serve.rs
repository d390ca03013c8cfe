//! `underlay volume serve`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_attach::daemon::become_a_disk;
use underlay_attach::{OwnedResource, ResourceRegistry};
use underlay_config::units;
use underlay_storage::stack::PacingMode;
use underlay_volume::server::PoolServer;
use underlay_volume::server::protocol::PoolState;

use crate::arguments::ServeVolumesArguments;
use crate::exit_codes::{BUG, ExitFailure, INTERRUPTED};
use crate::{output, service, signals};

const WATCH_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn serve(arguments: &ServeVolumesArguments) -> Result<ExitCode, ExitFailure> {
    let mut file = super::read(&arguments.pool)?;
    if let Some(listen) = arguments.listen {
        file.listen = listen;
    }
    become_a_disk();
    crate::commands::clean::mention_leftovers();
    let stop = signals::stop_flag()?;
    let registry = ResourceRegistry::open()?;
    // Before the socket exists, so that `underlay clean` finds what a killed server leaves.
    let note = registry.note(OwnedResource::Socket { path: file.control_socket() })?;
    let pace = if arguments.immediate { PacingMode::Immediate } else { PacingMode::Modelled };
    let started = match arguments.format {
        true => PoolServer::format(&file, pace),
        false => PoolServer::start(&file, pace),
    };
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            registry.forget(note);
            return Err(error.into());
        }
    };
    if let Some(note) = server.note() {
        output::say(format_args!("note: {note}"));
    }
    let state = server.state();
    warn_of_strangers(&state);
    output::print(&if arguments.json { to_json(&state) } else { describe(&state) });
    service::is_ready();
    while !stop.load(Ordering::Relaxed) && !server.is_over() && !server.has_panicked() {
        std::thread::sleep(WATCH_INTERVAL);
    }
    service::is_stopping();
    // Read before the end, which takes the threads.
    let (is_over, has_panicked) = (server.is_over(), server.has_panicked());
    let stopped = server.stop();
    registry.forget(note);
    stopped?;
    if has_panicked {
        output::say(format_args!(
            "underlay: a bug has ended a thread that takes hosts, and so the server ends\n  \
             what to do: start it again, and report the panic above; what was acknowledged is durable"
        ));
        return Ok(ExitCode::from(BUG));
    }
    Ok(if is_over { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
}

/// A server that everybody reaches, and that asks nobody who it is.
fn warn_of_strangers(state: &PoolState) {
    let Some(address) = state.address.filter(|address| !address.ip().is_loopback()) else { return };
    let open: Vec<&str> = state
        .volumes
        .iter()
        .filter(|volume| volume.admission.hosts.is_empty())
        .map(|volume| volume.name.as_str())
        .collect();
    if !open.is_empty() {
        tracing::warn!(
            "{address} can be reached by other hosts, and any host may use {}: give `hosts` and a secret in the pool's file",
            open.join(", ")
        );
    }
}

/// The address that clients use. Of a server that listens on all addresses of its host, the one by which that host
/// reaches others.
fn address_for_clients(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    // Documentation addresses (RFC 5737, RFC 3849): connecting a datagram socket sends nothing, and chooses a route.
    let far_v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let (any, far, loopback): (IpAddr, IpAddr, IpAddr) = match address {
        SocketAddr::V4(_) => {
            (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into())
        }
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), far_v6.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((far, 9))?;
        socket.local_addr()
    });
    SocketAddr::new(own.map_or(loopback, |own| own.ip()), address.port())
}

fn to_json(state: &PoolState) -> String {
    let volumes: Vec<_> = state
        .volumes
        .iter()
        .map(|volume| {
            serde_json::json!({ "name": volume.name, "nqn": volume.nqn, "capacity_bytes": volume.capacity_bytes })
        })
        .collect();
    serde_json::json!({
        "pool": state.pool,
        "address": state.address,
        "process": std::process::id(),
        "volumes": volumes,
    })
    .to_string()
}

fn describe(state: &PoolState) -> String {
    let Some(address) = state.address else { return String::new() };
    let count = match state.volumes.len() {
        1 => "1 volume".to_owned(),
        count => format!("{count} volumes"),
    };
    let mut lines = vec![format!("{} serves {count} at {address}; Ctrl-C ends it", state.pool)];
    let width = state.volumes.iter().map(|volume| volume.name.len()).max().unwrap_or(0);
    for volume in &state.volumes {
        let size = units::format_bytes(volume.capacity_bytes);
        lines.push(format!("  {:width$}  {size:>9}  {}", volume.name, volume.nqn));
    }
    if let Some(volume) = state.volumes.first() {
        let address = address_for_clients(address);
        lines.push("on a client:".to_owned());
        lines.push(format!("  underlay mount nvme-tcp://{address}/{} DIR", volume.name));
        lines.push(format!(
            "  nvme connect -t tcp -a {} -s {} -n {}",
            address.ip(),
            address.port(),
            volume.nqn
        ));
    }
    lines.join("\n")
}
