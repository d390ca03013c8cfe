//! The study's text.

use std::fmt::Write as _;
use std::path::Path;

use underlay_config::units::format_bytes;
use underlay_report::quantity;
use underlay_systems::first_study::{FirstWork, RunTimes};

use super::storage::{NewStorage, NewStorageSource};
use super::system::NewSystem;
use crate::exit_codes::ExitFailure;

/// Sizes of a study are a thousandth here, if its devices are large enough for that.
const MAX_DATA_SCALE: u64 = 1000;
/// The smallest volume that XFS is made on, and some more.
const VOLUME_MIN_BYTES: u64 = 340 << 20;
/// Of each volume, for the file system itself.
const FILESYSTEM_BYTES: u64 = 128 << 20;

/// Of the servers that most studies of storage used.
const CORES: u32 = 16;
const MODELLED_CLOCK: &str = "the modelled machine's clock; in slow motion they take longer on yours";
/// Where comments stand beside values.
const COLUMN: usize = 34;

pub(super) fn write(
    name: &str,
    file: &Path,
    system: &NewSystem,
    storages: &[NewStorage],
) -> Result<String, ExitFailure> {
    let apart = system.keeps_devices_apart();
    for storage in storages {
        let directories = storage.directories(apart);
        if directories > 1 && !system.capabilities.many_directories {
            return Err(ExitFailure::Mistake(format!(
                "'{}' gives {directories} directories, and {} uses one: choose a striped layout or devices such as hddx6",
                storage.name, system.title
            )));
        }
    }
    let is_real = storages.iter().any(|storage| !storage.is_modelled());
    // A system without storage shows this machine's limit, and a real disk runs at its own pace.
    let is_modelled = !is_real && !system.capabilities.keeps_nothing;
    let data = data_scale(system, storages, apart);
    let mut text = String::new();
    heading(&mut text, name, file, system, storages);
    section_of_system(&mut text, system, data);
    for storage in storages {
        section_of_storage(&mut text, storage, apart);
    }
    section_of_workload(&mut text, system, data);
    if is_modelled {
        section_of_machine(&mut text);
    }
    section_of_run(&mut text, system, storages, is_modelled);
    section_of_scale(&mut text, data, is_modelled);
    Ok(text)
}

/// The largest round factor by which all devices still hold the data.
fn data_scale(system: &NewSystem, storages: &[NewStorage], apart: bool) -> u64 {
    let needed = (system.first.data_bytes as f64 * system.first.room) as u64;
    let fits = |factor: u64| {
        storages.iter().all(|storage| {
            let Some((smallest, all)) = storage.room_bytes(apart) else { return true };
            let volumes = all / smallest.max(1);
            smallest / factor >= VOLUME_MIN_BYTES && all / factor >= needed + volumes * FILESYSTEM_BYTES
        })
    };
    let is_modelled = storages.iter().any(NewStorage::is_modelled);
    let factors = [MAX_DATA_SCALE, 500, 200, 100, 50, 20, 10, 5, 2];
    factors.into_iter().find(|&factor| is_modelled && fits(factor)).unwrap_or(1)
}

fn heading(text: &mut String, name: &str, file: &Path, system: &NewSystem, storages: &[NewStorage]) {
    let names: Vec<&str> = storages.iter().map(|storage| storage.name.as_str()).collect();
    let baseline =
        line(&format!("baseline = \"{}\"", names[0]), "the storage that the others are compared with");
    let question = match system.capabilities.keeps_nothing {
        true => "How much load can this machine generate?".to_owned(),
        false => format!("What does different storage do to {}?", system.title),
    };
    let _ = write!(
        text,
        "# {question} `underlay new` wrote this study as a start: change what you like.\n\
         #\n\
         #   underlay check {file}    what it would run, and every mistake at its line\n\
         #   underlay run {file}      run it, and compare\n\
         #\n\
         # `underlay schema study` prints a JSON Schema with every key, for editors.\n\n\
         name = \"{name}\"\n\
         title = \"{system} on {list}\"\n\
         {baseline}\n\n",
        // A second line of a name would be read as a part of the study.
        file = file.display().to_string().replace('\n', " "),
        system = system.title,
        list = names.join(", "),
    );
}

fn section_of_system(text: &mut String, system: &NewSystem, data: u64) {
    let _ = match system.first.memory_bytes {
        Some(_) => writeln!(
            text,
            "# The data system. All its memory comes out of one budget: its own and the kernel's page cache."
        ),
        None => writeln!(text, "# Stores nothing: it shows what the load generator itself can do."),
    };
    let _ = writeln!(text, "[system.{}]", system.name);
    if let Some(bytes) = system.first.memory_bytes {
        let _ = writeln!(text, "memory = \"{}\"", format_bytes(bytes * data));
    }
    if let Some(fixed) = system.first.fixed_memory {
        let fixed = format!("fixed_memory = \"{fixed}\"");
        let _ = writeln!(
            text,
            "{}",
            line(&fixed, "what its processes take however small the data are: not scaled")
        );
    }
    let _ = writeln!(text, "{}", system.first.settings);
}

fn section_of_storage(text: &mut String, storage: &NewStorage, apart: bool) {
    let _ = writeln!(text, "# {}\n[storage.{}]", storage.title(), storage.name);
    let _ = match &storage.source {
        NewStorageSource::Devices { medium_name, count: 1, .. } => {
            writeln!(text, "devices = [{{ medium = \"{medium_name}\" }}]")
        }
        NewStorageSource::Devices { medium_name, count, .. } => {
            let devices = format!("devices = [{{ medium = \"{medium_name}\", count = {count} }}]");
            let layout = match apart {
                true => line("layout = \"jbod\"", "a directory a device; or \"stripe\", \"mirror\""),
                false => line("layout = \"stripe\"", "one volume over all of them; or \"mirror\""),
            };
            writeln!(text, "{devices}\n{layout}")
        }
        NewStorageSource::Preset(preset) => writeln!(text, "preset = \"{}\"", preset.name),
        NewStorageSource::Path(path) => {
            let path = format!("paths = [{}]", serde_json::Value::from(path.as_str()));
            writeln!(text, "{}", line(&path, "a directory on a disk that you have, used as it is"))
        }
    };
    text.push('\n');
}

fn section_of_workload(text: &mut String, system: &NewSystem, data: u64) {
    let bytes = format_bytes(system.first.data_bytes * data);
    let _ = match &system.first.work {
        FirstWork::Requests { mixes, threads } => {
            let amount = format!("data = \"{bytes}\"");
            let amount = match system.first.memory_bytes {
                Some(memory_bytes) => {
                    let times = quantity::number(system.first.data_bytes as f64 / memory_bytes as f64, 2);
                    let times = times.trim_end_matches(".0");
                    line(&amount, &format!("{times} times the memory, so that reads go to the storage"))
                }
                None => amount,
            };
            writeln!(
                text,
                "# The load: YCSB's A is half reads, half updates, B 95 % reads, C reads only.\n\
                 [workload.ycsb]\n\
                 mixes = {mixes}\n\
                 {amount}\n\
                 record = {{ fields = 10, bytes = 100 }}\n\
                 distribution = \"uniform\"\n\
                 {}\n\
                 {}\n",
                line(&format!("threads = {threads}"), "clients"),
                line("# rate = [5_000, \"max\"]", "operations a second; without it as many as it takes"),
            )
        }
        FirstWork::Jobs { jobs } => writeln!(
            text,
            "# The load: batch jobs, each a cell of its own.\n\
             [workload.batch]\n\
             kind = \"jobs\"\n\
             jobs = {jobs}\n\
             data = \"{bytes}\"\n\
             maps = 2\n\
             reduces = 2\n",
        ),
    };
}

fn section_of_machine(text: &mut String) {
    let _ = writeln!(
        text,
        "# The machine that each node runs on. Yours stands for it in slow motion, as slow as your CPUs and the devices need.\n[machine]\n{}\n",
        line(&format!("cores = {CORES}"), "set this to what your server has"),
    );
}

fn section_of_run(text: &mut String, system: &NewSystem, storages: &[NewStorage], is_modelled: bool) {
    let Some(RunTimes { modelled, of_disks, wall }) = &system.first.times else {
        let _ = write!(text, "# How often each job runs.\n[run]\n{}", system.first.run);
        return;
    };
    let (clock, times) = match is_modelled {
        true if storages.iter().any(NewStorage::is_rotational) => (MODELLED_CLOCK, of_disks),
        true => (MODELLED_CLOCK, modelled),
        false => ("your own clock", wall),
    };
    let _ = write!(
        text,
        "# How long and how often each cell is measured, in random order. These are times on {clock}.\n[run]\n{times}{}",
        system.first.run,
    );
}

fn section_of_scale(text: &mut String, data: u64, is_modelled: bool) {
    let data_is = match data {
        1 => "sizes are as they stand above".to_owned(),
        _ => format!("memory, data and devices are 1/{data} of the values above"),
    };
    let time = match is_modelled {
        true => String::new(),
        false => format!("{}\n", line("time = 1", "no slow motion")),
    };
    let _ = writeln!(
        text,
        "\n# How the modelled machine becomes this one. The report divides this out again.\n[scale]\n{time}{}",
        line(&format!("data = {data}"), &data_is),
    );
}

/// A key with its comment beside it.
fn line(key: &str, comment: &str) -> String {
    format!("{key:<COLUMN$}# {comment}")
}
