//! How long runnable threads waited for a CPU, from the scheduler's own counters (`/proc/PID/task/TID/schedstat`, the
//! second number). A CPU that is never idle proves little: a low-priority program uses the idle time without making
//! others wait.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;

use super::processors::Processors;

/// More threads than a load has here; the rest of a longer listing is ignored.
const MAX_THREADS: usize = 16_384;
/// Helper threads that no operation waits for, by the beginning of their names. The pacer's thread yields on purpose,
/// and the devices' own checks judge its lateness. Java compiles and marks in the background. Threads that collect
/// garbage while all others stand still count.
const IN_THE_BACKGROUND: [&str; 5] = ["pacer", "C1 Comp", "C2 Comp", "G1 ", "VM Periodic"];

/// The waits so far of threads that act as clients, and of processes that serve them on the same CPUs.
#[derive(Clone, Debug, Default)]
pub struct CpuWaits {
    /// By thread: the threads of this process that are named after clients.
    clients: BTreeMap<u32, Duration>,
    /// By thread: the processes that this one started and that may run only on the given CPUs.
    helpers: BTreeMap<u32, Duration>,
}

impl CpuWaits {
    /// Reads threads of this process whose names begin with `client_prefix`, and all threads of its children that are
    /// confined to `cpus`.
    pub fn read(client_prefix: &str, cpus: &Processors) -> CpuWaits {
        let own = Path::new("/proc/self/task");
        let mut waits = CpuWaits::default();
        let mut children = Vec::new();
        for thread in threads(own) {
            let directory = own.join(thread.to_string());
            // It may have ended since the listing.
            if let Some(waited) =
                name_of(&directory).starts_with(client_prefix).then(|| waited(&directory)).flatten()
            {
                waits.clients.insert(thread, waited);
            }
            // Absent on kernels without CONFIG_PROC_CHILDREN: then only the clients are counted.
            let listed = fs::read_to_string(directory.join("children")).unwrap_or_default();
            children.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        let is_confined = |pid: &i32| {
            let allowed = Pid::from_raw(*pid).and_then(|pid| sched_getaffinity(Some(pid)).ok());
            let allowed = allowed.map(|allowed| Processors::from(&allowed)).unwrap_or_default();
            !allowed.is_empty() && allowed.iter().all(|cpu| cpus.iter().any(|one| one == cpu))
        };
        for pid in children.into_iter().filter(is_confined) {
            let directory = Path::new("/proc").join(pid.to_string()).join("task");
            for thread in threads(&directory) {
                let directory = directory.join(thread.to_string());
                let name = name_of(&directory);
                if IN_THE_BACKGROUND.iter().any(|background| name.starts_with(background)) {
                    continue;
                }
                if let Some(waited) = waited(&directory) {
                    waits.helpers.insert(thread, waited);
                }
            }
        }
        waits
    }

    /// How long they waited since `earlier`, summed over the threads that existed at both times. `None` if there was no
    /// client, or the kernel has no such counters.
    pub fn delta_since(&self, earlier: &CpuWaits) -> Option<Duration> {
        let difference = |now: &BTreeMap<u32, Duration>, then: &BTreeMap<u32, Duration>| -> Vec<Duration> {
            now.iter().filter_map(|(thread, now)| Some(now.saturating_sub(*then.get(thread)?))).collect()
        };
        let clients = difference(&self.clients, &earlier.clients);
        let helpers = difference(&self.helpers, &earlier.helpers);
        (!clients.is_empty()).then(|| clients.iter().chain(&helpers).sum())
    }
}

fn threads(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(MAX_THREADS).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Empty if it has ended.
fn name_of(thread: &Path) -> String {
    fs::read_to_string(thread.join("comm")).unwrap_or_default()
}

fn waited(thread: &Path) -> Option<Duration> {
    parse(&fs::read_to_string(thread.join("schedstat")).ok()?)
}

/// `time on a CPU, time waiting for one, slices`; both times in nanoseconds (Documentation/scheduler/sched-stats.rst).
fn parse(text: &str) -> Option<Duration> {
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn waits(clients: &[(u32, u64)], helpers: &[(u32, u64)]) -> CpuWaits {
        let all =
            |pairs: &[(u32, u64)]| pairs.iter().map(|&(id, ms)| (id, Duration::from_millis(ms))).collect();
        CpuWaits { clients: all(clients), helpers: all(helpers) }
    }

    #[test]
    fn schedstat_line_is_parsed() {
        assert_eq!(parse("81234 5600 12\n"), Some(Duration::from_nanos(5600)));
        assert_eq!(parse("81234\n"), None);
        assert_eq!(parse("a b c"), None);
    }

    #[test]
    fn thread_waits_between_snapshots_are_summed() {
        let before = waits(&[(1, 100), (2, 0)], &[(9, 50)]);
        // Two clients waited 100 ms together, and the processes that serve them 40 ms.
        let after = waits(&[(1, 180), (2, 20)], &[(9, 90)]);
        assert_eq!(after.delta_since(&before), Some(Duration::from_millis(140)));
        // A thread that started or ended in between is left out.
        let other = waits(&[(1, 180), (3, 900)], &[(9, 90), (10, 900)]);
        assert_eq!(other.delta_since(&before), Some(Duration::from_millis(120)));
        assert_eq!(waits(&[(3, 900)], &[(9, 90)]).delta_since(&before), None);
    }

    #[test]
    fn this_process_s_clients_are_found_by_name() {
        let (release, released) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel::<()>();
        let client = std::thread::Builder::new().name("waiting-test-1".into());
        let client = client
            .spawn(move || {
                ready.send(()).unwrap();
                let _ = released.recv();
            })
            .unwrap();
        is_ready.recv().unwrap();
        let found = CpuWaits::read("waiting-test-", &Processors::available());
        assert_eq!(found.clients.len(), 1);
        drop(release);
        client.join().unwrap();
    }
}
