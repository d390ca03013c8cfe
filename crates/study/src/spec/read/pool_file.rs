//! `POOL.toml`: a pool of devices and the volumes served from it (`underlay volume serve`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, sections_of};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::SecretPlaces;
use underlay_volume::pool::VolumeSpec;
use underlay_volume::pool_file::{
    ModelledDevices, PoolDevices, PoolFile, VolumeAdmission, VolumeFile, check_nqn,
};
use underlay_volume::rate::RateLimits;

use super::devices::read_initial;
use super::media_files::{MediaReader, ReadFile};
use super::{devices, execution};
use crate::spec::model::DeviceSpec;

/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;
/// Volumes are addressed in blocks of this size.
const BLOCK_BYTES: u64 = 4096;

/// Reads a pool's file. All its mistakes are found in one go, each with its place in the text.
///
/// `file_name` is for the messages, and `base_directory` is the base of relative paths. `read_file` returns the text of
/// a medium's file by its name in the pool's file.
///
/// # Errors
/// A [`Diagnostics`] with at least one error.
pub fn read_pool_file(
    file_name: &str,
    text: &str,
    base_directory: &Path,
    read_file: ReadFile<'_>,
) -> Result<PoolFile, Diagnostics> {
    let media = MediaReader::new(read_file);
    let mut findings = Diagnostics::new(file_name, text);
    let Some(document) = underlay_config::parse(text, &mut findings) else { return Err(findings) };
    let mut root = Section::root("the pool", document.as_table());
    let name = root.require("name", "name = \"tank\"", &mut findings);
    let name = name.and_then(|field| field.name(&mut findings));
    let listen = root.take("listen").and_then(|field| read_address(&field, &mut findings));
    let directory = root.take("directory").and_then(|field| read_path(&field, &mut findings));
    let (devices, has_all_devices) =
        findings.attempt(|findings| read_devices(&mut root, &media, base_directory, findings));
    let power_cut = root.take("power_cut");
    let is_real = matches!(devices, Some(PoolDevices::Paths(_)));
    let power_cut = power_cut.is_some_and(|field| read_power_cut(&field, is_real, &mut findings));
    let volumes = root.take("volume");
    // If the list has a mistake, the number of devices is unknown.
    let counted = devices.as_ref().filter(|_| has_all_devices);
    let volumes = volumes.map(|field| read_volumes(&field, counted, base_directory, &mut findings));
    let scale = execution::read_scale(&mut root, &mut findings);
    root.finish(&mut findings);
    // A pool's data is not scaled: the file should describe a smaller pool.
    if scale.value.data != 1.0 {
        let label = "expected `time` alone: give the devices the capacity that they are to have here";
        findings.push(Diagnostic::error(scale.span, "a pool has no data scale", label));
    }
    findings.sort();
    match (name, devices) {
        (Some(name), Some(devices)) if !findings.has_errors() => Ok(PoolFile {
            directory: base_directory
                .join(directory.unwrap_or_else(|| PathBuf::from(format!("{name}.pool")))),
            name,
            listen: listen.unwrap_or_else(PoolFile::usual_address),
            devices,
            power_cut,
            volumes: volumes.unwrap_or_default(),
            dilation: scale.value.time,
        }),
        _ => Err(findings),
    }
}

/// Whether the power of the devices can be cut on command.
fn read_power_cut(field: &Field<'_>, is_real: bool, findings: &mut Diagnostics) -> bool {
    let armed = field.boolean(findings).unwrap_or(false);
    if armed && is_real {
        let message = format!("{} does not go with `paths`", field.place);
        let label = "the power of real devices is not cut";
        findings.push(Diagnostic::error(field.key_span.clone(), message, label));
    }
    armed
}

fn read_address(field: &Field<'_>, findings: &mut Diagnostics) -> Option<SocketAddr> {
    let expected = "an address and a port, as in \"127.0.0.1:4420\"";
    let text = field.text(expected, findings)?;
    match text.value.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            field.invalid(format!("expected {expected}; \"[::]:4420\" listens on every address"), findings);
            None
        }
    }
}

fn read_path(field: &Field<'_>, findings: &mut Diagnostics) -> Option<PathBuf> {
    let expected = "a path, as in \"/var/lib/tank\"";
    let text = field.text(expected, findings)?;
    if text.value.trim().is_empty() || text.value.contains('\0') {
        field.invalid(format!("expected {expected}"), findings);
        return None;
    }
    Some(PathBuf::from(text.value))
}

fn read_devices(
    root: &mut Section<'_>,
    media: &MediaReader<'_>,
    base_directory: &Path,
    findings: &mut Diagnostics,
) -> Option<PoolDevices> {
    let (devices, paths, initial) = (root.take("devices"), root.take("paths"), root.take("initial"));
    match (devices, paths) {
        (None, None) => {
            let label = "expected `devices = [{ medium = \"nvme-9300-max\", count = 8 }]` or `paths = [\"/dev/nvme1n1\"]`";
            // No position in the file is wrong: something is missing from it.
            findings.push(Diagnostic::error(0..0, "the pool needs `devices` or `paths`", label));
            None
        }
        (Some(devices), Some(paths)) => {
            findings.push(
                Diagnostic::error(
                    paths.key_span,
                    "the pool is both modelled and real",
                    "expected either `devices` or `paths`",
                )
                .with_context(devices.key_span, "modelled here"),
            );
            None
        }
        (None, Some(paths)) => {
            if let Some(initial) = initial {
                let message = format!("{} does not go with `paths`", initial.place);
                let label = "real devices are used as they are";
                findings.push(Diagnostic::error(initial.key_span, message, label));
            }
            let list = paths.list(findings, |element, findings| {
                Some(Spanned::new(base_directory.join(read_path(element, findings)?), element.span.clone()))
            });
            // An empty list, or one with mistakes only, is reported when it is read.
            (!list.is_empty()).then(|| PoolDevices::Paths(list.into_iter().map(|path| path.value).collect()))
        }
        (Some(devices), None) => {
            let initial = read_initial(initial, findings)?;
            let devices = read_modelled(&devices, media, findings)?;
            Some(PoolDevices::Modelled { devices, initial })
        }
    }
}

fn read_modelled(
    field: &Field<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> Option<Vec<ModelledDevices>> {
    // Volumes are cut from any devices: they need not be equal.
    let devices = devices::read_devices(field, None, media, findings)?;
    let as_modelled = |device: DeviceSpec| {
        let DeviceSpec { medium, count, capacity_bytes, .. } = device;
        ModelledDevices { medium, count, capacity_bytes }
    };
    Some(devices.into_iter().map(as_modelled).collect())
}

fn read_volumes(
    field: &Field<'_>,
    devices: Option<&PoolDevices>,
    base_directory: &Path,
    findings: &mut Diagnostics,
) -> Vec<VolumeFile> {
    let sections = sections_of(field, "volume", "data", findings).into_iter();
    sections
        .filter_map(|(name, section)| read_volume(name, section, devices, base_directory, findings))
        .collect()
}

fn read_volume(
    name: String,
    mut section: Section<'_>,
    devices: Option<&PoolDevices>,
    base_directory: &Path,
    findings: &mut Diagnostics,
) -> Option<VolumeFile> {
    let capacity = section.require("capacity", "capacity = \"16 GiB\"", findings);
    let compress = section.take("compress");
    let mirror = section.take("mirror");
    let iops = section.take("iops");
    let bandwidth = section.take("bandwidth");
    let hosts = section.take("hosts");
    let secrets = SecretFields {
        env: section.take("secret_env"),
        file: section.take("secret_file"),
        controller_env: section.take("controller_secret_env"),
        controller_file: section.take("controller_secret_file"),
    };
    let shared = section.take("shared");
    // It refuses the remaining fields, so all fields are taken before.
    section.finish(findings);

    let capacity = capacity.and_then(|field| {
        let bytes = field.bytes(findings)?.value;
        if !bytes.is_multiple_of(BLOCK_BYTES) {
            field
                .invalid(format!("expected whole blocks of {BLOCK_BYTES} bytes, as in \"16 GiB\""), findings);
            return None;
        }
        Some(bytes)
    });
    let compress = compress.and_then(|field| match field.word(&["lz4", "zstd", "none"], findings)?.value {
        "lz4" => Some(CompressionCodec::Lz4),
        "zstd" => Some(CompressionCodec::Zstd(ZSTD_LEVEL)),
        _ => None,
    });
    let mirrored = mirror.as_ref().and_then(|field| field.boolean(findings)).unwrap_or(false);
    if let (Some(field), true, Some(1)) = (&mirror, mirrored, devices.map(count)) {
        let message = format!("{} needs two devices, but the pool has one", field.place);
        findings.push(Diagnostic::error(
            field.span.clone(),
            message,
            "expected `mirror = false`, or another device",
        ));
    }
    let iops = iops.and_then(|field| field.whole(1..=1_000_000_000, findings)).map(|iops| iops.value);
    let bytes_per_second = bandwidth
        .and_then(|field| field.bandwidth_mb_s(findings))
        .map(|bandwidth| (bandwidth.value * 1e6).round() as u64);
    let (hosts, has_all_hosts) =
        findings.attempt(|findings| hosts.map(|field| field.list(findings, read_host)).unwrap_or_default());
    let secrets = secrets.read(!hosts.is_empty() || !has_all_hosts, base_directory, findings);
    let shared = shared.as_ref().and_then(|field| field.boolean(findings)).unwrap_or(false);
    let limits = RateLimits { iops, bytes_per_second };
    // A missing capacity ends it only here, so that mistakes in other fields are reported too.
    let spec = VolumeSpec { capacity_bytes: capacity?, compress, mirror: mirrored, limits };
    let hosts = hosts.into_iter().map(|host| host.value).collect();
    Some(VolumeFile { name, spec, admission: VolumeAdmission { hosts, secrets, shared } })
}

/// How hosts and the server authenticate to each other.
struct SecretFields<'a> {
    env: Option<Field<'a>>,
    file: Option<Field<'a>>,
    controller_env: Option<Field<'a>>,
    controller_file: Option<Field<'a>>,
}

impl SecretFields<'_> {
    fn read(&self, has_hosts: bool, base_directory: &Path, findings: &mut Diagnostics) -> SecretPlaces {
        let SecretFields { env, file, controller_env, controller_file } = self;
        for (env, file) in [(env, file), (controller_env, controller_file)] {
            if let (Some(env), Some(file)) = (env, file) {
                let message = format!("{} beside {}", file.place, env.place);
                let error = Diagnostic::error(file.key_span.clone(), message, "expected one of the two");
                findings.push(error.with_context(env.key_span.clone(), "the same secret"));
            }
        }
        let host = env.as_ref().or(file.as_ref());
        let controller = controller_env.as_ref().or(controller_file.as_ref());
        if let (Some(field), None) = (controller, host) {
            let message = format!("{} without a secret of the hosts", field.place);
            let label =
                "expected `secret_env` or `secret_file` beside it: the server proves itself to hosts that do";
            findings.push(Diagnostic::error(field.key_span.clone(), message, label));
        }
        if let (Some(field), false) = (host.or(controller), has_hosts) {
            let message = format!("{} without `hosts`", field.place);
            let label = "expected the hosts that know the secret beside it";
            findings.push(Diagnostic::error(field.key_span.clone(), message, label));
        }
        let mut variable = |field: &Option<Field<'_>>| read_variable(field.as_ref()?, findings);
        let (secret_env, controller_secret_env) = (variable(env), variable(controller_env));
        let mut path =
            |field: &Option<Field<'_>>| Some(base_directory.join(read_path(field.as_ref()?, findings)?));
        let (secret_file, controller_secret_file) = (path(file), path(controller_file));
        SecretPlaces { secret_env, secret_file, controller_secret_env, controller_secret_file }
    }
}

fn count(devices: &PoolDevices) -> u32 {
    match devices {
        PoolDevices::Modelled { devices, .. } => devices.iter().map(|device| device.count).sum(),
        PoolDevices::Paths(paths) => u32::try_from(paths.len()).unwrap_or(u32::MAX),
    }
}

fn read_host(element: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<String>> {
    let host = element.text("a host's qualified name", findings)?;
    match check_nqn(&host.value) {
        Ok(()) => Some(host),
        Err(expected) => {
            element.invalid(expected, findings);
            None
        }
    }
}

/// The name of a variable, never the secret itself: more people read this file than should know it.
fn read_variable(field: &Field<'_>, findings: &mut Diagnostics) -> Option<String> {
    let text = field.text("the name of an environment variable, as in \"DATA_SECRET\"", findings)?;
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if is_name(&text.value) {
        return Some(text.value);
    }
    let label = if text.value.starts_with("DHHC-1:") {
        "expected the name of an environment variable that has it, or `secret_file`: a secret in this file \
             would not stay secret"
    } else {
        "expected the name of an environment variable, as in \"DATA_SECRET\""
    };
    field.invalid(label, findings);
    None
}
