//! A description of this machine, for the record.

use std::collections::BTreeMap;
use std::fs;

use underlay_record::MachineRecord;

pub fn describe() -> MachineRecord {
    let uname = rustix::system::uname();
    MachineRecord {
        hostname: uname.nodename().to_string_lossy().into_owned(),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory_bytes: value_of("/proc/meminfo", "MemTotal", ':')
            .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok())
            // The kernel writes kB and means KiB (proc(5)).
            .map_or(0, |kib| kib * 1024),
        cpu: value_of("/proc/cpuinfo", "model name", ':').unwrap_or_else(|| "unknown".into()),
        kernel: uname.release().to_string_lossy().into_owned(),
        distribution: value_of("/etc/os-release", "PRETTY_NAME", '=')
            .map_or_else(|| "unknown".into(), |text| text.trim_matches('"').to_owned()),
        virtualisation: virtualisation(),
        wake_up_limit_us: None,
    }
}

pub fn versions(of_systems: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut versions: BTreeMap<String, String> = of_systems.into_iter().collect();
    versions.insert("underlay".into(), env!("CARGO_PKG_VERSION").into());
    versions.insert("kernel".into(), rustix::system::uname().release().to_string_lossy().into_owned());
    versions
}

/// The first line `key SEPARATOR value` of a file.
fn value_of(path: &str, key: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn virtualisation() -> Option<String> {
    let flags = value_of("/proc/cpuinfo", "flags", ':')?;
    // Hypervisors set this flag for their guests, on x86.
    if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return None;
    }
    let vendor = fs::read_to_string("/sys/class/dmi/id/sys_vendor").ok();
    Some(vendor.map_or_else(|| "a hypervisor".into(), |name| name.trim().to_owned()))
}
