//! Predictions are made from records that anyone may have edited: there is always an answer or a refusal.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use underlay_predict::simulation::OperationArrivals;
use underlay_predict::{Calibration, CellPoint, MeasuredCell};
use underlay_record::{CertificateVerdict, SeriesPoint, read, soundness};
use underlay_storage::catalogue;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, VolumeSpec};

fuzz_target!(|text: &str| {
    let Ok(mut record) = read::cell(text) else { return };
    // What is not sound goes no further.
    let _ = soundness::select_sound(&[&record]);
    record.node_events.clear();
    for device in &mut record.devices {
        device.faults.clear();
        device.earlier_faults.clear();
    }
    if let Some(certificate) = &mut record.certificate {
        certificate.verdict = CertificateVerdict::Faithful;
        certificate.checks.clear();
    }
    if let Some(measured) = &mut record.measured {
        measured.series =
            vec![SeriesPoint { throughput_per_s: 1.0, mean_us: 1.0, ..SeriesPoint::default() }; 20];
    }
    let medium = catalogue::find("optane-p4800x").expect("it is in the catalogue");
    let device = |name: &str, capacity_bytes| {
        DeviceSpec::new(name, Some(medium.clone()), capacity_bytes, BackingSpec::Null)
    };
    let volume = VolumeSpec::striped("volume", vec![device("one", 1 << 28)], 1 << 19);
    // What it says of layers is read where its storage has some.
    let volume = match record.layers.is_empty() {
        true => volume,
        false => {
            let fast = StackNode::Device(device("one.cache-0", 1 << 26));
            VolumeSpec { root: StackNode::cache(CacheMode::WriteBack, fast, volume.root), ..volume }
        }
    };
    let point = CellPoint {
        id: record.cell.id.clone(),
        system: record.cell.system.clone(),
        settings: Default::default(),
        nodes: 1,
        servers: 1,
        mix: record.cell.mix_or_job().to_owned(),
        distribution: "zipfian".to_owned(),
        threads: 4,
        arrivals: OperationArrivals::Closed,
        records: 1e5,
        record_bytes: 1e3,
        memory_bytes: 1e7,
        cores: Some(4),
        storage: record.cell.storage.clone(),
        volumes: vec![volume],
        shares_devices: false,
        filled_by: None,
        not_modelled: None,
        assumed: None,
    };
    if let Ok(cell) = MeasuredCell::new(point.clone(), &[&record], None) {
        // An operation of thousands of reads takes its time to simulate.
        if cell.demand.reads() < 20.0 {
            let _ = Calibration::new(vec![Arc::new(cell)]).predict(&point);
        }
    }
});
