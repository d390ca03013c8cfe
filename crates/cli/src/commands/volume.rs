//! `underlay volume`: volumes of a pool, served over NVMe/TCP.

mod list;
mod serve;

use std::path::Path;
use std::process::ExitCode;

use underlay_config::units;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::SecretPlaces;
use underlay_study::spec::read_pool_file;
use underlay_volume::pool::VolumeSpec;
use underlay_volume::pool_file::{PoolFile, VolumeAdmission, VolumeFile};
use underlay_volume::rate::RateLimits;
use underlay_volume::server::protocol::{FailureKind, PoolCommand, PoolReply};
use underlay_volume::server::{self, ServerError};

use super::read_study::MAX_FILE_BYTES;
use crate::arguments::{CreateVolumeArguments, VolumeArguments, VolumeCodec, VolumeCommand};
use crate::exit_codes::ExitFailure;
use crate::output;

/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;

pub(crate) fn volume(arguments: &VolumeArguments) -> Result<ExitCode, ExitFailure> {
    match &arguments.command {
        VolumeCommand::Serve(arguments) => return serve::serve(arguments),
        VolumeCommand::List { pool, json } => return list::list(&read(pool)?, *json),
        VolumeCommand::Check { pool, json } => return check(&read(pool)?, *json),
        VolumeCommand::Create(arguments) => create(arguments)?,
        VolumeCommand::Resize { pool, name, capacity, shrink } => {
            let capacity_bytes = bytes("SIZE", capacity)?;
            let file = read(pool)?;
            let (volume, shrink) = (name.clone(), *shrink);
            tell(&file, PoolCommand::Resize { volume, capacity_bytes, shrink })?;
            output::print(&format!("volume {name} has {} now", units::format_bytes(capacity_bytes)));
            // The server has done it, but reads its file only as it starts.
            if let Some(in_file) = find_volume(&file, name)
                && in_file.spec.capacity_bytes != capacity_bytes
            {
                output::say(format_args!(
                    "note: {} says capacity = \"{}\" for it: write the new one there, for the next start",
                    pool.display(),
                    units::format_bytes(in_file.spec.capacity_bytes)
                ));
            }
        }
        VolumeCommand::Snapshot { pool, name, snapshot, writable } => {
            let (volume, made, writable) = (name.clone(), snapshot.clone(), *writable);
            tell(&read(pool)?, PoolCommand::Snapshot { volume, snapshot: made, writable })?;
            output::print(&format!("volume {snapshot} holds what {name} held now"));
        }
        VolumeCommand::Resync { pool, device } => {
            tell(&read(pool)?, PoolCommand::Resync { member: device.clone() })?;
            output::print(&format!("{device} is up to date and in use"));
        }
        VolumeCommand::Delete { pool, name, connected } => {
            let file = read(pool)?;
            let (volume, connected) = (name.clone(), *connected);
            tell(&file, PoolCommand::Delete { volume, connected })?;
            output::print(&format!("volume {name} is gone"));
            if find_volume(&file, name).is_some() {
                output::say(format_args!(
                    "note: {} still lists it: remove it there, or the next start creates it again, empty",
                    pool.display()
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(arguments: &CreateVolumeArguments) -> Result<(), ExitFailure> {
    let bytes_per_second = match &arguments.bandwidth {
        Some(text) => {
            let bits = units::parse_bandwidth(text)
                .map_err(|problem| ExitFailure::Mistake(format!("--bandwidth {text}: {problem}")))?;
            Some(bits / 8)
        }
        None => None,
    };
    if arguments.iops == Some(0) || bytes_per_second == Some(0) {
        return Err(ExitFailure::Mistake("a limit of 0: expected 1 or more".into()));
    }
    let compress = match arguments.compress {
        VolumeCodec::None => None,
        VolumeCodec::Lz4 => Some(CompressionCodec::Lz4),
        VolumeCodec::Zstd => Some(CompressionCodec::Zstd(ZSTD_LEVEL)),
    };
    let spec = VolumeSpec {
        capacity_bytes: bytes("--capacity", &arguments.capacity)?,
        compress,
        mirror: arguments.mirror,
        limits: RateLimits { iops: arguments.iops, bytes_per_second },
    };
    let secrets = arguments.secrets.places()?;
    if arguments.hosts.is_empty() && secrets != SecretPlaces::default() {
        return Err(ExitFailure::Mistake("a secret without --host: name the hosts that know it".into()));
    }
    let admission = VolumeAdmission { hosts: arguments.hosts.clone(), secrets, shared: arguments.shared };
    let volume = VolumeFile { name: arguments.name.clone(), spec, admission };
    tell(&read(&arguments.pool)?, PoolCommand::Create { volume })?;
    output::print(&format!("volume {} is there", arguments.name));
    Ok(())
}

fn check(file: &PoolFile, json: bool) -> Result<ExitCode, ExitFailure> {
    let PoolReply::Checked { problems } = ask(file, PoolCommand::Check)? else {
        return Err(other_answer_error());
    };
    if json {
        output::print(&serde_json::json!({ "pool": file.name, "problems": problems }).to_string());
    } else if problems.is_empty() {
        output::print(&format!("{}: every extent belongs to the right volume", file.name));
    } else {
        output::print(&problems.join("\n"));
    }
    match problems.len() {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(ExitFailure::Failed(format!("the pool {} has {count} problems", file.name))),
    }
}

/// Reads a pool's file, or says all its mistakes.
pub(super) fn read(path: &Path) -> Result<PoolFile, ExitFailure> {
    let text = underlay_files::read_text_or_pipe(path, MAX_FILE_BYTES).map_err(|error| {
        ExitFailure::Mistake(format!("cannot read the pool's file {}: {error}", path.display()))
    })?;
    // A pool names files as seen from its own directory.
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder
        .canonicalize()
        .map_err(|error| ExitFailure::Mistake(format!("cannot find {}: {error}", folder.display())))?;
    let read_file = |name: &str| {
        let file = folder.join(name);
        underlay_files::read_text(&file, MAX_FILE_BYTES)
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    read_pool_file(&path.display().to_string(), &text, &folder, &read_file)
        .map_err(|mistakes| ExitFailure::Findings(Box::new(mistakes)))
}

fn find_volume<'a>(file: &'a PoolFile, name: &str) -> Option<&'a VolumeFile> {
    file.volumes.iter().find(|volume| volume.name == name)
}

fn bytes(setting: &str, text: &str) -> Result<u64, ExitFailure> {
    units::parse_bytes(text).map_err(|problem| ExitFailure::Mistake(format!("{setting} {text}: {problem}")))
}

/// The reply to a command that was done.
fn ask(file: &PoolFile, command: PoolCommand) -> Result<PoolReply, ExitFailure> {
    match server::obey(file, command)? {
        PoolReply::Failed { kind: FailureKind::Mistake, problem } => Err(ExitFailure::Mistake(problem)),
        PoolReply::Failed { kind: FailureKind::Failed, problem } => Err(ExitFailure::Failed(problem)),
        reply => Ok(reply),
    }
}

fn tell(file: &PoolFile, command: PoolCommand) -> Result<(), ExitFailure> {
    match ask(file, command)? {
        PoolReply::Done => Ok(()),
        _ => Err(other_answer_error()),
    }
}

fn other_answer_error() -> ExitFailure {
    ExitFailure::Failed("the server answered something else: it may be of another version".into())
}

impl From<ServerError> for ExitFailure {
    fn from(error: ServerError) -> Self {
        if error.is_mistake() {
            ExitFailure::Mistake(error.to_string())
        } else {
            ExitFailure::Failed(error.to_string())
        }
    }
}
