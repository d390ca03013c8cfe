//! `underlay volume list`

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use underlay_config::units;
use underlay_report::quantity;
use underlay_volume::pool::MemberState;
use underlay_volume::pool_file::PoolFile;
use underlay_volume::server::protocol::{PoolCommand, PoolReply, PoolState, VolumeState};

use crate::exit_codes::ExitFailure;
use crate::output;

const HEADINGS: [&str; 10] =
    ["volume", "capacity", "used", "stored", "ratio", "kind", "of", "hosts", "IOPS", "MB/s"];

pub(super) fn list(file: &PoolFile, json: bool) -> Result<ExitCode, ExitFailure> {
    let PoolReply::State(state) = super::ask(file, PoolCommand::List)? else {
        return Err(super::other_answer_error());
    };
    if json {
        output::print(&serde_json::to_string_pretty(&state).expect("a pool's state is plain data"));
    } else {
        output::print(&render(&state));
    }
    Ok(ExitCode::SUCCESS)
}

fn render(state: &PoolState) -> String {
    let place = state.address.map_or("not served".to_owned(), |address| format!("served at {address}"));
    let used = state.space_bytes.saturating_sub(state.free_bytes);
    let mut text = format!(
        "{}: {place}; {} of {} used on {}\n",
        state.pool,
        quantity::bytes(used as f64),
        quantity::bytes(state.space_bytes as f64),
        quantity::plural(state.members.len(), "device")
    );
    for member in state.members.iter().filter(|member| member.state != MemberState::InUse) {
        let member_state = match member.state {
            MemberState::Doubtful => {
                "lacking unflushed data from before the pool was opened; `volume resync` writes it again"
            }
            state => state.describe(),
        };
        text.push_str(&format!("{} is {member_state}\n", member.name));
    }
    if state.volumes.is_empty() {
        return text + "it has no volume: `underlay volume create` makes one\n";
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(HEADINGS);
    for volume in &state.volumes {
        table.add_row(row(volume));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        // Words to the left, numbers to the right.
        if !matches!(index, 0 | 5 | 6) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.push_str(&(output::table(&table) + "\n"));
    for volume in &state.volumes {
        let writer = volume.writer.as_ref().map(|host| format!("  {host} writes")).unwrap_or_default();
        text.push_str(&format!("{}  {}{writer}\n", volume.name, volume.nqn));
    }
    text
}

fn row(volume: &VolumeState) -> [String; 10] {
    let mut kind = vec![volume.compress.clone().unwrap_or("plain".to_owned())];
    kind.extend(
        volume.mirror.then(|| if volume.degraded { "mirror, degraded" } else { "mirror" }.to_owned()),
    );
    kind.extend(volume.admission.shared.then(|| "shared".to_owned()));
    kind.extend((!volume.writable).then(|| "read-only".to_owned()));
    let traffic = &volume.traffic;
    let rate = |count: u64| if traffic.served_s > 0.0 { count as f64 / traffic.served_s } else { 0.0 };
    [
        volume.name.clone(),
        // As it was asked for.
        units::format_bytes(volume.capacity_bytes),
        quantity::bytes(volume.used_bytes as f64),
        quantity::bytes(volume.stored_bytes as f64),
        match volume.stored_bytes {
            0 => quantity::ABSENT.to_owned(),
            stored => format!("{:.2}", volume.used_bytes as f64 / stored as f64),
        },
        kind.join(", "),
        volume.snapshot_of.clone().unwrap_or_default(),
        volume.clients.to_string(),
        quantity::number(rate(traffic.reads + traffic.writes), 2),
        quantity::number(rate(traffic.read_bytes + traffic.written_bytes) / 1e6, 2),
    ]
}

#[cfg(test)]
mod tests {
    use underlay_volume::pool_file::VolumeAdmission;
    use underlay_volume::rate::RateLimits;
    use underlay_volume::server::protocol::{MemberStatus, VolumeTraffic};

    use super::*;

    #[test]
    fn volume_list_shows_pool_and_volumes() {
        let volume = VolumeState {
            name: "data".into(),
            nqn: "nqn.2025-11.internal.underlay:tank:data".into(),
            capacity_bytes: 64_000_000_000,
            used_bytes: 6_000_000_000,
            stored_bytes: 2_000_000_000,
            compress: Some("lz4".into()),
            mirror: true,
            degraded: true,
            writable: false,
            snapshot_of: Some("logs".into()),
            limits: RateLimits::default(),
            admission: VolumeAdmission::default(),
            clients: 2,
            writer: Some("nqn.2014-08.org.example:a".into()),
            traffic: VolumeTraffic {
                reads: 300,
                writes: 100,
                written_bytes: 8_000_000,
                served_s: 4.0,
                ..VolumeTraffic::default()
            },
        };
        let member = MemberStatus {
            name: "ssd-sata.0".into(),
            space_bytes: 5,
            free_bytes: 1,
            state: MemberState::Out,
        };
        let state = PoolState {
            pool: "tank".into(),
            address: Some("127.0.0.1:4420".parse().unwrap()),
            members: vec![member],
            space_bytes: 10_000_000_000,
            free_bytes: 8_000_000_000,
            volumes: vec![volume],
        };
        let text = render(&state);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "tank: served at 127.0.0.1:4420; 2.00 GB of 10.0 GB used on 1 device");
        assert_eq!(lines[1], "ssd-sata.0 is out of use");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[2]), "volume capacity used stored ratio kind of hosts IOPS MB/s");
        assert_eq!(
            words(lines[3]),
            "data 64 GB 6.00 GB 2.00 GB 3.00 lz4, mirror, degraded, read-only logs 2 100 2.0"
        );
        assert_eq!(
            lines[4],
            "data  nqn.2025-11.internal.underlay:tank:data  nqn.2014-08.org.example:a writes"
        );
    }
}
