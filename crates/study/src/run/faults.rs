//! A study's faults, each injected into its devices at its time.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use underlay_attach::{AttachError, AttachedStorage, ServedStorage};
use underlay_record::DeviceActivity;
use underlay_storage::faults::{ByteExtent, DeviceFault, DeviceFaults, PowerCut};
use underlay_sync::{Condvar, Mutex};

use super::cell_plan::CellPlan;
use super::{CellError, storage};
use crate::spec::{FaultAct, FaultSpec, StorageSource, StorageSpec, Study};
use underlay_config::units::format_duration;

/// The faults of a study that concern a storage configuration; none for a real one, which takes no commands.
pub(super) fn concerning<'a>(study: &'a Study, storage: &StorageSpec) -> Vec<&'a FaultSpec> {
    match storage.source {
        StorageSource::Modelled { .. } => {
            study.faults.iter().filter(|fault| fault.concerns(&storage.name)).collect()
        }
        StorageSource::Volume(_) | StorageSource::Paths(_) | StorageSource::Elsewhere(_) => Vec::new(),
    }
}

/// A note on the faults, for readers of the record; `None` without faults.
pub(super) fn note(faults: &[&FaultSpec]) -> Option<String> {
    let one = |spec: &&FaultSpec| {
        let action = match &spec.act {
            FaultAct::Device(fault) => fault.to_string(),
            FaultAct::PowerCut { .. } => "power cut".to_owned(),
        };
        let device = spec.device.map_or_else(String::new, |index| format!(" on device {index}"));
        let length =
            spec.duration.map_or_else(String::new, |length| format!(" for {}", format_duration(length)));
        format!("{}{device} from {}{length}: {action}", spec.name, format_duration(spec.at))
    };
    let list: Vec<String> = faults.iter().map(one).collect();
    (!list.is_empty()).then(|| format!("faults on command: {}", list.join("; ")))
}

/// The sampling interval of devices that are only queried for their faults.
pub(super) const UNSAMPLED_S: f64 = 3600.0;

/// Removes all faults from the devices of a storage configuration. A device without power stays without.
pub(super) fn end_all(attached: &AttachedStorage) -> Result<(), CellError> {
    match attached.served() {
        Some(served) => Ok(served.clear(None)?),
        None => Ok(()),
    }
}

/// The device faults during loading that may show in the data. A device that is only slow still gets the right data.
pub(super) fn faults_in_data(devices: &[DeviceActivity]) -> Vec<String> {
    let of_device = |device: &DeviceActivity| {
        let over = device.earlier_faults.iter().filter(|fault| !fault.only_slows).map(|fault| &fault.what);
        let open = device.faults.iter().map(|fault| &fault.what);
        over.chain(open)
            .map(|description| format!("{}: {description}", device.description.id))
            .collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device).collect()
}

/// An action at a time after measuring began.
struct ScheduledFault {
    at_wall: Duration,
    /// `slow-disk from 40 s`; absent where it only ends an earlier one.
    name: Option<String>,
    act: FaultStep,
}

enum FaultStep {
    Inject { devices: Vec<String>, fault: DeviceFault, for_s: Option<f64> },
    Cut { devices: Vec<String>, cut: PowerCut },
    PowerOn,
}

/// The faults of a cell in order of time.
pub(super) struct FaultSchedule {
    served: Option<ServedStorage>,
    events: Vec<ScheduledFault>,
}

/// Faults that did not take place, because measuring had ended before.
type MissedFaults = Vec<String>;

/// A schedule in progress. It stops when dropped.
pub(super) struct RunningFaults {
    served: Option<ServedStorage>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Result<MissedFaults, AttachError>>>,
}

impl FaultSchedule {
    /// On the storage of the only server: a study with several servers has no faults.
    pub(super) fn new(
        plan: &CellPlan<'_>,
        attached: Option<&AttachedStorage>,
    ) -> Result<FaultSchedule, CellError> {
        let faults = concerning(plan.study, &plan.storage);
        let (Some(attached), false) = (attached, faults.is_empty()) else {
            return Ok(FaultSchedule { served: None, events: Vec::new() });
        };
        let served = attached.served().map(ServedStorage::for_study).ok_or_else(|| {
            CellError::Failed(format!("the attachment {} takes no commands for faults", attached.name()))
        })?;
        let all = served.faults()?;
        let listed = storage::device_names(&plan.storage);
        let mut events = Vec::new();
        for (index, spec) in faults.into_iter().enumerate() {
            let devices = match spec.device {
                // Checked with the study, and counted in its order: the stack begins with a cache's device.
                Some(device) => listed.get(device).cloned().into_iter().collect(),
                None => meeting(&all, &spec.act, plan.scale.data),
            };
            let seed = plan.seed.wrapping_add(index as u64);
            let at_wall = spec.at.mul_f64(plan.scale.time);
            let name = Some(format!("{} from {}", spec.name, format_duration(spec.at)));
            match &spec.act {
                FaultAct::Device(fault) => {
                    let fault = here(fault.clone(), seed, plan.scale.data);
                    let for_s = spec.duration.map(|length| length.as_secs_f64());
                    events.push(ScheduledFault {
                        at_wall,
                        name,
                        act: FaultStep::Inject { devices, fault, for_s },
                    });
                }
                FaultAct::PowerCut { torn, reordered } => {
                    let cut = PowerCut { seed, torn: *torn, reordered: *reordered };
                    events.push(ScheduledFault { at_wall, name, act: FaultStep::Cut { devices, cut } });
                    if let Some(end) = spec.ends() {
                        events.push(ScheduledFault {
                            at_wall: end.mul_f64(plan.scale.time),
                            name: None,
                            act: FaultStep::PowerOn,
                        });
                    }
                }
            }
        }
        // One thread carries them out one after another, so the earliest must be first.
        events.sort_by_key(|event| event.at_wall);
        Ok(FaultSchedule { served: Some(served), events })
    }

    /// Measuring begins at this instant, which may lie in the future.
    pub(super) fn start(self, began: Instant) -> Result<RunningFaults, CellError> {
        let FaultSchedule { served, events } = self;
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = match (&served, events.is_empty()) {
            (Some(served), false) => {
                let (served, stop) = (served.clone(), Arc::clone(&stop));
                let run = move || carry_out(events, began, &stop, |step| take_step(&served, step));
                Some(thread::Builder::new().name("faults".into()).spawn(run)?)
            }
            _ => None,
        };
        Ok(RunningFaults { served, stop, thread })
    }
}

impl RunningFaults {
    /// Measuring has ended, so no more faults take place: what follows is only clearing away. The result has a warning
    /// for each fault that did not take place.
    pub(super) fn end(mut self) -> Result<Vec<String>, CellError> {
        let outcome = self.halt();
        if let Some(served) = &self.served {
            served.clear(None)?;
        }
        let warn = |name| format!("{name} did not come: measuring had ended before");
        Ok(outcome?.into_iter().map(warn).collect())
    }

    fn halt(&mut self) -> Result<MissedFaults, AttachError> {
        // A panic in that thread is a bug of ours: it continues here.
        self.ended_thread().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn ended_thread(&mut self) -> std::thread::Result<Result<MissedFaults, AttachError>> {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        self.thread.take().map_or(Ok(Ok(Vec::new())), std::thread::JoinHandle::join)
    }
}

impl Drop for RunningFaults {
    fn drop(&mut self) {
        let _ = self.ended_thread();
    }
}

/// Carries out the steps by `act`, each at its time.
fn carry_out(
    events: Vec<ScheduledFault>,
    began: Instant,
    stop: &(Mutex<bool>, Condvar),
    mut act: impl FnMut(FaultStep) -> Result<(), AttachError>,
) -> Result<MissedFaults, AttachError> {
    let (stopped, changed) = stop;
    let mut missed = Vec::new();
    for ScheduledFault { at_wall, name, act: step } in events {
        let mut is_over = stopped.lock();
        while !*is_over {
            let left = (began + at_wall).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            is_over = changed.wait_timeout(is_over, left);
        }
        if *is_over {
            missed.extend(name);
            continue;
        }
        drop(is_over);
        act(step)?;
    }
    Ok(missed)
}

fn take_step(served: &ServedStorage, step: FaultStep) -> Result<(), AttachError> {
    match step {
        FaultStep::Inject { devices, fault, for_s } => {
            for device in devices {
                served.inject(&device, fault.clone(), for_s)?;
            }
            Ok(())
        }
        FaultStep::Cut { devices, cut } => served.cut_power(&devices, cut).map(drop),
        FaultStep::PowerOn => served.switch_on(),
    }
}

/// The devices of a storage that hold some of the bytes that a fault is limited to.
fn meeting(all: &[DeviceFaults], act: &FaultAct, data_scale: f64) -> Vec<String> {
    let extent = match act {
        FaultAct::Device(fault) => here(fault.clone(), 0, data_scale).extent(),
        FaultAct::PowerCut { .. } => None,
    };
    let meets =
        |device: &&DeviceFaults| extent.is_none_or(|extent| extent.start_bytes < device.capacity_bytes);
    all.iter().filter(meets).map(|device| device.device.clone()).collect()
}

/// A fault of the study, adapted to this machine's smaller devices.
fn here(mut fault: DeviceFault, of_cell: u64, data_scale: f64) -> DeviceFault {
    match &mut fault {
        DeviceFault::Errors { extent, seed, .. } | DeviceFault::Corrupt { extent, seed, .. } => {
            *seed = of_cell;
            let scaled = |bytes: u64| (bytes as f64 / data_scale) as u64;
            *extent = extent.map(|ByteExtent { start_bytes, end_bytes }| {
                let start_bytes = scaled(start_bytes);
                // A small extent must not shrink to nothing.
                ByteExtent { start_bytes, end_bytes: scaled(end_bytes).max(start_bytes + 1) }
            });
        }
        DeviceFault::Spikes { seed, .. } => *seed = of_cell,
        _ => {}
    }
    fault
}

#[cfg(test)]
mod tests {
    use underlay_record::{DeviceDescription, DeviceId, DisturbedBy, EarlierFault, FaultRecord};

    use super::*;

    #[test]
    fn fault_after_the_end_is_missed() {
        let step = |at_wall, name: Option<&str>| ScheduledFault {
            at_wall,
            name: name.map(str::to_owned),
            act: FaultStep::PowerOn,
        };
        let hour = Duration::from_secs(3600);
        let stop = (Mutex::new(false), Condvar::new());
        let events =
            vec![step(Duration::ZERO, Some("early")), step(hour, Some("late")), step(2 * hour, None)];
        let mut step_count = 0;
        // Measuring ends with the first step.
        let missed = carry_out(events, Instant::now(), &stop, |_| {
            step_count += 1;
            *stop.0.lock() = true;
            Ok(())
        });
        assert_eq!((missed.unwrap(), step_count), (vec!["late".to_owned()], 1));
    }

    /// A cache's device is smaller than what it caches. A fault at the end of the latter does not touch it.
    #[test]
    fn extent_fault_applies_to_covering_devices() {
        let device = |name: &str, capacity_bytes| DeviceFaults {
            device: name.to_owned(),
            medium: None,
            capacity_bytes,
            power_cut_armed: false,
            powered: true,
            is_remote: false,
            faults: Vec::new(),
        };
        let all = [device("fast.0", 1_000), device("slow.0", 10_000)];
        let confined = |start_bytes| {
            let extent = Some(ByteExtent { start_bytes, end_bytes: 1_000_000 });
            FaultAct::Device(DeviceFault::Corrupt { rate: 1.0, extent, seed: 0 })
        };
        assert_eq!(meeting(&all, &confined(0), 10.0), ["fast.0", "slow.0"]);
        assert_eq!(meeting(&all, &confined(20_000), 10.0), ["slow.0"]);
        assert_eq!(meeting(&all, &FaultAct::Device(DeviceFault::Vanish), 10.0).len(), 2);
        assert_eq!(meeting(&all, &FaultAct::PowerCut { torn: false, reordered: false }, 10.0).len(), 2);
    }

    /// Half of all reads had a wrong bit while data was written to a device, and every cell began with this data.
    #[test]
    fn fault_while_loading_is_in_data_unless_slowness() {
        let earlier = |fault_name: &str, only_slows| EarlierFault {
            what: fault_name.to_owned(),
            by: DisturbedBy::Hand,
            ended_by_hand: false,
            only_slows,
            lasted_s: 1.0,
            ended_before_s: 100.0,
        };
        let open = FaultRecord {
            t_s: 0.0,
            until_s: None,
            what: "full".to_owned(),
            by: Some(DisturbedBy::Hand),
            ended_by_hand: false,
        };
        let id = DeviceId { name: "hdd.0".to_owned(), ..DeviceId::default() };
        let description = DeviceDescription { id, ..DeviceDescription::default() };
        let mut device = DeviceActivity { description, ..DeviceActivity::default() };
        device.earlier_faults = vec![earlier("slow", true)];
        assert!(faults_in_data(std::slice::from_ref(&device)).is_empty());
        // No matter how long ago it ended: nothing has mended the data since.
        device.earlier_faults.push(earlier("corrupts", false));
        device.faults.push(open);
        assert_eq!(faults_in_data(&[DeviceActivity::default(), device]), ["hdd.0: corrupts", "hdd.0: full"]);
    }
}
