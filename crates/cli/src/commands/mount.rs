//! `underlay mount`: a modelled disk for any program, or a volume of a server.

mod disk;
mod paths;
mod space;
mod volume;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{
    AttachError, AttachSpec, AttachedStorage, FilesystemKind, ResourceRegistry, choice, mounts,
};
use underlay_config::units;
use underlay_record::{Certificate, LatencySummary};
use underlay_report::quantity;
use underlay_storage::catalogue::{self, LayoutPreset};
use underlay_storage::stack::{BackingSpec, DeviceSpec, InitialState, PacingMode, StackSpec, VolumeSpec};
use underlay_study::machine::{self, CpuPlacement};
use underlay_study::run::{certificate, storage};
use underlay_study::spec::{MAX_TIME, StorageSpec, Study};

use crate::arguments::{InitialStateArgument, MountArguments};
use crate::exit_codes::{ExitFailure, INTERRUPTED};
use crate::{output, signals, umask};
use disk::{DiskState, MountedDisk};

const DEFAULT_DEVICE_BYTES: u64 = 8 << 30;
const CHUNK_BYTES: u64 = 64 << 10;
const MIN_DEVICE_BYTES: u64 = 1 << 20;
const SEED: u64 = 1;
const SAMPLE_INTERVAL_S: f64 = 1.0;
/// Recovering a filesystem reads its log at the modelled disk's speed.
const REMOUNT_LIMIT: Duration = Duration::from_secs(60);
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// A mount, before its place is printed.
struct MountRequest {
    /// As messages call it.
    title: String,
    stack: StackSpec,
    filesystem: FilesystemKind,
    /// The name of the attachment, where one is asked for.
    attachment: Option<String>,
    /// How far the kernel is to read ahead.
    read_ahead_bytes: Option<u64>,
    /// Of a volume that is elsewhere: whether it holds nothing.
    is_blank: Option<bool>,
}

pub(crate) fn mount(arguments: &MountArguments) -> Result<ExitCode, ExitFailure> {
    super::clean::mention_leftovers();
    if let Some(time) = arguments.time
        && !(1.0..=MAX_TIME).contains(&time)
    {
        let time = crate::arguments::as_typed(time);
        return Err(ExitFailure::Mistake(format!(
            "--time is {time}: expected a factor from 1 to {MAX_TIME}"
        )));
    }
    if let Some(name) = &arguments.attachment
        && !choice::ATTACHMENTS.iter().any(|way| way.name == name)
    {
        let names: Vec<&str> = choice::ATTACHMENTS.iter().map(|way| way.name).collect();
        return Err(ExitFailure::Mistake(format!(
            "--attachment is '{name}': expected one of {}",
            names.join(", ")
        )));
    }
    if let Some(file) = &arguments.activity {
        underlay_files::check_writable(file).map_err(|error| not_written(file, &error))?;
    }
    check_mount_point(&arguments.dir)?;
    let stop = signals::stop_flag()?;
    let registry = ResourceRegistry::open()?;
    let mut disk = MountedDisk::open(arguments, &registry)?;
    let MountRequest { title, mut stack, filesystem, attachment, read_ahead_bytes, is_blank } =
        match &arguments.storage {
            _ if volume::is_url(&arguments.medium) => remote_volume(arguments)?,
            Some(name) => storage_of_study(arguments, name, disk.folder(), &registry, &stop)?,
            None => match catalogue::find_layout(&arguments.medium) {
                Ok(layout) => whole_layout(arguments, &layout, &disk)?,
                Err(_) => striped_medium(arguments, &disk)?,
            },
        };
    for volume in &mut stack.volumes {
        volume.root.for_each_device(&mut |device| device.power_cut_armed = arguments.power_cut);
    }
    let devices: Vec<&DeviceSpec> = stack.volumes.iter().flat_map(VolumeSpec::devices).collect();
    let state = match is_blank {
        Some(is_blank) if is_blank || arguments.format => DiskState::Blank,
        Some(_) => DiskState::Whole,
        None => disk.examine(&stack, filesystem)?,
    };
    space::check(&devices, disk.folder())?;
    let dilation = stack.dilation;
    let mut spec = AttachSpec {
        filesystem: Some(filesystem),
        format: state == DiskState::Blank,
        // One volume is the directory itself, of several each has one below it.
        mount_point: (stack.volumes.len() == 1).then(|| arguments.dir.clone()),
        mount_root: arguments.dir.clone(),
        stack,
    };
    let attachment = match attachment.as_deref() {
        Some(name) => choice::choose(Some(name))?,
        None => choice::choose_for(&spec.stack, None)?,
    };
    // The next step removes what `--format` replaces, so anything else in the way must be reported before it.
    attachment.probe()?;
    if spec.format {
        spec.filesystem.map_or(Ok(()), FilesystemKind::probe)?;
    }
    match &spec.mount_point {
        Some(mount_point) => mounts::check_empty(mount_point)?,
        None => {
            let places = spec.stack.volumes.iter().map(|volume| spec.mount_root.join(&volume.name));
            places.collect::<Vec<_>>().iter().try_for_each(|place| mounts::check_empty(place))?;
        }
    }
    disk.begin(state)?;
    let mut attached = attachment.attach(&spec, &registry);
    if let (Err(AttachError::NoFilesystem(_)), DiskState::Unfinished) = (&attached, state) {
        // There is no whole file system, so nobody has written to it. Other causes that keep it from being mounted
        // pass.
        spec.format = true;
        attached = attachment.attach(&spec, &registry);
    }
    let mut attached = attached.inspect_err(|_| disk.give_up())?;
    disk.is_ready()?;
    if let Some(bytes) = read_ahead_bytes {
        attached.read_ahead(bytes, &registry)?;
    }
    if arguments.immediate {
        attached.set_pace(PacingMode::Immediate)?;
    }
    attached.begin_measurement(SAMPLE_INTERVAL_S)?;
    let code = if arguments.command.is_empty() {
        output::print(&format!(
            "{title} is mounted on {} by {}; Ctrl-C unmounts it{}",
            arguments.dir.display(),
            attached.name(),
            if arguments.keep.is_some() || is_blank.is_some() { "" } else { " and deletes its content" }
        ));
        if attached.paths().len() > 1 {
            for path in attached.paths() {
                output::print(&format!("  {}", path.display()));
            }
        }
        wait(&attached, &stop)?;
        ExitCode::from(INTERRUPTED)
    } else {
        run_command(arguments, &stop)?
    };
    let activity = conclude(arguments, dilation, &attached);
    attached.detach()?;
    // A file that can't be written keeps no disk mounted.
    if let Some((file, activity)) = arguments.activity.as_deref().zip(activity?) {
        underlay_files::write(file, activity.as_bytes()).map_err(|error| not_written(file, &error))?;
    }
    Ok(code)
}

/// Said before anything is made: a directory that is not there is made by the attachment.
fn check_mount_point(dir: &Path) -> Result<(), ExitFailure> {
    let cannot = |reason: &str| ExitFailure::Mistake(format!("cannot mount on {}: {reason}", dir.display()));
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(cannot("it is not a directory")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let exists = dir.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("."));
            match exists.starts_with("/proc") || exists.starts_with("/sys") {
                true => Err(cannot(&format!("cannot create a directory in {}", exists.display()))),
                false => Ok(()),
            }
        }
        Err(error) => Err(cannot(&error.to_string())),
    }
}

fn not_written(file: &Path, error: &std::io::Error) -> ExitFailure {
    ExitFailure::from_place_error(format!("cannot write {}: {error}", file.display()), error)
}

/// `--storage`: as a study describes it, but at the size that the study's scale makes of it.
fn storage_of_study(
    arguments: &MountArguments,
    name: &str,
    images: &Path,
    registry: &ResourceRegistry,
    stop: &AtomicBool,
) -> Result<MountRequest, ExitFailure> {
    let file = Path::new(&arguments.medium);
    if file.extension().is_none_or(|extension| extension != "toml") {
        return Err(ExitFailure::Mistake(format!(
            "--storage goes with a study's file, as in `underlay mount my-study.toml DIR --storage {name}`; \
             '{}' is none",
            arguments.medium
        )));
    }
    let study = super::read_study::read_study(file, underlay_study::spec::StudyForm::default())?;
    let Some(storage) = study.storages.iter().find(|storage| storage.name == name) else {
        let names: Vec<&str> = study.storages.iter().map(|storage| storage.name.as_str()).collect();
        return Err(ExitFailure::Mistake(format!(
            "{} has no storage '{name}': it has {}",
            file.display(),
            names.join(", ")
        )));
    };
    let time = match arguments.time {
        Some(time) => time,
        // Without a pace there is no time to stretch, so this host is not measured.
        None if study.leaves_time_open && !arguments.immediate => factor_here(&study, registry, stop)?,
        None => study.scale.time,
    };
    let Some(stack) = storage::stack(storage, images, study.scale.data, time, study.run.seed) else {
        return Err(ExitFailure::Mistake(format!(
            "[storage.{name}] of {} is real storage: there is nothing to mount, use its directories",
            file.display()
        )));
    };
    Ok(MountRequest {
        title: format!("[storage.{name}] of {}", file.display()),
        stack,
        filesystem: storage::filesystem(storage).ok_or_else(|| {
            ExitFailure::Mistake(format!(
                "[storage.{name}] of {} has no file system: there is nothing to mount",
                file.display()
            ))
        })?,
        attachment: arguments.attachment.clone().or(study.run.attachment),
        read_ahead_bytes: storage.read_ahead_bytes,
        is_blank: None,
    })
}

/// The factor of slow motion that a run of the study would have here.
fn factor_here(study: &Study, registry: &ResourceRegistry, stop: &AtomicBool) -> Result<f64, ExitFailure> {
    let placement = CpuPlacement::measure()?;
    let chosen = machine::choose(study, &placement, registry, stop, &mut |_| {})?
        .ok_or_else(|| ExitFailure::Stopped("stopped: nothing is mounted".to_owned()))?;
    let time = chosen.time;
    output::say(format_args!(
        "slow motion x{time}, as a run of {} would use on this host right now",
        study.name
    ));
    Ok(time)
}

/// The file system that a volume of a server holds stays; a blank one gets what is asked for.
fn remote_volume(arguments: &MountArguments) -> Result<MountRequest, ExitFailure> {
    let asked = filesystem(arguments)?;
    let found = volume::find(arguments)?;
    Ok(MountRequest {
        title: arguments.medium.clone(),
        stack: found.stack,
        filesystem: match found.filesystem {
            Some(existing) if !arguments.format => existing,
            _ => asked.unwrap_or_default(),
        },
        attachment: found.attachment,
        read_ahead_bytes: None,
        is_blank: Some(found.is_blank),
    })
}

/// The one that is asked for.
fn filesystem(arguments: &MountArguments) -> Result<Option<FilesystemKind>, ExitFailure> {
    match arguments.filesystem.as_deref() {
        None => Ok(None),
        Some("xfs") => Ok(Some(FilesystemKind::Xfs)),
        Some("ext4") => Ok(Some(FilesystemKind::Ext4)),
        Some(other) => Err(ExitFailure::Mistake(format!("--filesystem is '{other}': expected xfs or ext4"))),
    }
}

/// A published set-up: its devices put together as they were, each of the size that is asked for.
fn whole_layout(
    arguments: &MountArguments,
    layout: &LayoutPreset,
    disk: &MountedDisk,
) -> Result<MountRequest, ExitFailure> {
    let device_bytes = size(arguments)?.or(disk.device_bytes()).unwrap_or(DEFAULT_DEVICE_BYTES);
    let spec = StorageSpec::from_layout(layout, device_bytes, initial(arguments));
    let time = arguments.time.unwrap_or(1.0);
    let stack = storage::stack(&spec, disk.folder(), 1.0, time, SEED)
        .ok_or_else(|| ExitFailure::Failed(format!("the layout {} has no devices", layout.name)))?;
    Ok(MountRequest {
        title: format!("the layout {}", layout.name),
        stack,
        filesystem: filesystem(arguments)?.or(disk.filesystem()).unwrap_or_default(),
        attachment: arguments.attachment.clone(),
        read_ahead_bytes: None,
        is_blank: None,
    })
}

fn initial(arguments: &MountArguments) -> InitialState {
    match arguments.initial {
        InitialStateArgument::Fresh => InitialState::Fresh,
        InitialStateArgument::Steady => InitialState::Steady,
    }
}

/// Of a device, where one is asked for.
fn size(arguments: &MountArguments) -> Result<Option<u64>, ExitFailure> {
    let Some(text) = &arguments.size else { return Ok(None) };
    match units::parse_bytes(text) {
        Ok(bytes) if bytes < MIN_DEVICE_BYTES => {
            Err(ExitFailure::Mistake(format!("--size {text}: expected a device of 1 MiB at least")))
        }
        Ok(bytes) => Ok(Some(bytes)),
        Err(problem) => Err(ExitFailure::Mistake(format!("--size {text}: {problem}"))),
    }
}

fn striped_medium(arguments: &MountArguments, disk: &MountedDisk) -> Result<MountRequest, ExitFailure> {
    let filesystem = filesystem(arguments)?.or(disk.filesystem()).unwrap_or_default();
    let devices = devices(arguments, disk)?;
    Ok(MountRequest {
        title: arguments.medium.clone(),
        stack: StackSpec {
            volumes: vec![VolumeSpec::striped("disk", devices, CHUNK_BYTES)],
            dilation: arguments.time.unwrap_or(1.0),
            seed: SEED,
        },
        filesystem,
        attachment: arguments.attachment.clone(),
        read_ahead_bytes: None,
        is_blank: None,
    })
}

/// `hdd-7200-sata`, `hdd-7200-satax6` or `my-disk.toml`: a medium and how many of it.
fn medium_and_count(text: &str) -> Result<(catalogue::CatalogueMedium, u32), ExitFailure> {
    if text.ends_with(".toml") {
        if underlay_files::read_text(Path::new(text), super::read_study::MAX_FILE_BYTES)
            .is_ok_and(|file| file.contains("[storage."))
        {
            return Err(ExitFailure::Mistake(format!(
                "{text} is a study, not a medium: choose one of its storages with --storage"
            )));
        }
        return Ok((super::media::read(Path::new(text))?, 1));
    }
    let unknown = match catalogue::find(text) {
        Ok(medium) => return Ok((medium, 1)),
        Err(unknown) => unknown,
    };
    if let Some((name, count)) = text.rsplit_once('x')
        && let Ok(count) = count.parse::<u32>()
        && let Ok(medium) = catalogue::find(name)
    {
        return match count {
            1..=64 => Ok((medium, count)),
            _ => Err(ExitFailure::Mistake(format!("{count} devices: expected 1 to 64"))),
        };
    }
    Err(ExitFailure::Mistake(format!("{unknown}; or a layout: {}", layouts().join(", "))))
}

fn layouts() -> Vec<String> {
    catalogue::layouts().iter().map(|layout| layout.name.clone()).collect()
}

fn devices(arguments: &MountArguments, disk: &MountedDisk) -> Result<Vec<DeviceSpec>, ExitFailure> {
    let (medium, count) = medium_and_count(&arguments.medium)?;
    let asked = size(arguments)?;
    let refused = |problem: String| {
        ExitFailure::Mistake(format!("--size {}: {problem}", arguments.size.as_deref().unwrap_or_default()))
    };
    // A volume's rates follow its size. Without one it is the catalogue's own, and a part of it is served.
    let medium = match asked {
        Some(bytes) => medium
            .with_size(bytes)
            .map_err(|problem| refused(format!("no such {}: {problem}", medium.name)))?,
        None => medium,
    };
    let capacity_bytes = match asked {
        Some(bytes) if bytes > medium.capacity_bytes() => {
            return Err(refused(format!(
                "{} has {} at most; several make more, as in {}x2",
                medium.name,
                units::rounded_bytes(medium.capacity_bytes()),
                medium.name
            )));
        }
        Some(bytes) => bytes,
        None => disk.device_bytes().unwrap_or(DEFAULT_DEVICE_BYTES).min(medium.capacity_bytes()),
    };
    // Every chunk of a stripe is whole.
    let capacity_bytes = capacity_bytes / CHUNK_BYTES * CHUNK_BYTES;
    Ok((0..count)
        .map(|index| {
            let name = format!("{}.{index}", medium.name);
            let backing = BackingSpec::File(disk.folder().join(format!("{name}.img")));
            let mut device = DeviceSpec::new(name, Some(medium.clone()), capacity_bytes, backing);
            device.initial = initial(arguments);
            device
        })
        .collect())
}

fn wait(attached: &AttachedStorage, stop: &AtomicBool) -> Result<(), ExitFailure> {
    let mut healthy = Instant::now();
    let mut is_said = false;
    while !stop.load(Ordering::Relaxed) {
        match attached.health() {
            Ok(()) => (healthy, is_said) = (Instant::now(), false),
            // After a power cut the filesystem is mounted anew: for a moment it is not there.
            Err(error) => {
                let served = attached.served().filter(|served| served.faults().is_ok());
                // One whose return stopped half-way is mounted by the next `fault … return`.
                let waits = healthy.elapsed() <= REMOUNT_LIMIT;
                let unmounted = served.as_ref().is_some_and(|served| served.has_unmounted());
                if served.is_none() || !(waits || unmounted) {
                    return Err(error.into());
                }
                if !waits && !std::mem::replace(&mut is_said, true) {
                    let place =
                        attached.paths().first().map(|path| path.to_string_lossy()).unwrap_or_default();
                    output::say(format!(
                        "{place} is not mounted since a return of its power that did not end: `underlay fault {} return` finishes it",
                        underlay_files::shell::word(&place)
                    ));
                }
            }
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
    Ok(())
}

/// Runs the user's command; a signal to us is passed on, so that nothing holds the disk when we take it away.
fn run_command(arguments: &MountArguments, stop: &AtomicBool) -> Result<ExitCode, ExitFailure> {
    let (program, rest) = arguments.command.split_first().expect("the caller saw a command");
    let mut command = Command::new(program);
    command.args(rest);
    let mask = umask::former();
    // SAFETY: umask may be called between fork and exec, and cannot fail.
    unsafe {
        command.pre_exec(move || {
            libc::umask(mask);
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|error| {
        ExitFailure::Mistake(format!("cannot run {}: {error}", program.to_string_lossy()))
    })?;
    let mut passed_on = false;
    loop {
        let ended = child
            .try_wait()
            .map_err(|error| ExitFailure::Failed(format!("waiting for the command: {error}")))?;
        if let Some(status) = ended {
            use std::os::unix::process::ExitStatusExt as _;
            // As shells have it for a program that a signal ended.
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        }
        if stop.load(Ordering::Relaxed) && !passed_on {
            passed_on = true;
            let pid = libc::pid_t::try_from(child.id()).expect("a process id fits");
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says what the devices did, and gives it as JSON where that is wanted.
fn conclude(
    arguments: &MountArguments,
    dilation: f64,
    attached: &AttachedStorage,
) -> Result<Option<String>, ExitFailure> {
    let activity = attached.end_measurement()?;
    let paths = attached.path_records();
    for device in &activity {
        let totals = &device.totals;
        let late = match (&device.modelled, &device.delivered) {
            // The rest is this host's own: the file behind the device, and the model that keeps up with writes.
            (_, Some(got)) if arguments.immediate && got.count() > 0 => {
                let here_us = got.summary_us().mean * dilation;
                format!(", each answered by this host in {} on average", quantity::latency(here_us))
            }
            (Some(asked), Some(got)) if asked.count() > 0 => {
                let got = paths::waited(&paths, got);
                format!(
                    ", p50 {} modelled and {} delivered, p99 {} and {}",
                    quantity::latency(asked.quantile_us(0.5)),
                    quantity::latency(got.quantile_us(0.5)),
                    quantity::latency(asked.quantile_us(0.99)),
                    quantity::latency(got.quantile_us(0.99))
                )
            }
            _ => String::new(),
        };
        let wear = match device.wear.as_ref().and_then(|wear| wear.write_amplification) {
            Some(amplification) => {
                let start = match device.description.starts_overwritten {
                    Some(true) => ", on a drive modelled as overwritten throughout",
                    Some(false) => ", on a drive modelled as fresh",
                    None => "",
                };
                format!(", write amplification {amplification:.2}{start}")
            }
            None => String::new(),
        };
        output::say(format_args!(
            "{}: {} reads ({}), {} writes ({}), {} flushes{late}{wear}",
            device.description.id.name,
            totals.reads,
            quantity::bytes(totals.read_bytes as f64),
            totals.writes,
            quantity::bytes(totals.write_bytes as f64),
            totals.flushes,
        ));
    }
    // Fast-forward keeps no time, so there is none to hold what programs waited against.
    if !arguments.immediate {
        paths.iter().filter_map(paths::line).for_each(|line| output::say(format_args!("{line}")));
    }
    let certificate = match arguments.immediate {
        true => None,
        false => certificate::certify_devices(&activity, &paths, dilation),
    };
    for check in certificate.iter().flat_map(Certificate::failed) {
        output::say(format_args!("doubtful: {}: {}", check.name, check.finding));
    }
    if arguments.activity.is_none() {
        return Ok(None);
    }
    let devices: Vec<serde_json::Value> = activity
        .iter()
        .map(|device| {
            serde_json::json!({
                "modelled_us": device.modelled.as_ref().map(|histogram| histogram.summary_us()),
                "delivered_us": device.delivered.as_ref().map(|histogram| LatencySummary {
                    count: histogram.count(),
                    ..paths::waited(&paths, histogram).summary_us()
                }),
                "activity": device,
            })
        })
        .collect();
    let whole = serde_json::json!({
        "time": dilation,
        "devices": devices,
        "paths": paths,
        "certificate": certificate,
        "layers": attached.layers()?,
    });
    Ok(Some(whole.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medium_accepts_a_count() {
        let read = |text| {
            medium_and_count(text)
                .map(|(medium, count)| (medium.name, count))
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("hdd-7200-sata"), Ok(("hdd-7200-sata".into(), 1)));
        assert_eq!(read("hdd-7200-satax6"), Ok(("hdd-7200-sata".into(), 6)));
        // The names of media may end in an x and digits themselves.
        assert_eq!(read("nvme-9300-maxx2"), Ok(("nvme-9300-max".into(), 2)));
        assert!(read("hdd-7200-satax0").unwrap_err().contains("1 to 64"));
        assert!(read("hdd-7200-stat").unwrap_err().contains("hdd-7200-sata"));
    }
}
