//! Targets that come back without what they had answered, or come back as something else.

use std::sync::mpsc;

use underlay_nvme::initiator::{ControllerOptions, NvmeController};
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};

use crate::broken_target::{R2T, Wire};
use crate::served::{MIB, NQN, Server, within};
use crate::{BLOCK, open, options, read, write};

fn flush(device: &impl BlockDevice) -> Result<(), DeviceError> {
    device.execute(DeviceRequest::Flush).map(drop)
}

#[test]
fn flushes_fail_until_lost_data_is_rewritten() {
    within(120, || {
        let mut server = Server::start(4 * MIB);
        let (_, device) = open(options(server.address()));
        write(&device, 0, vec![1; 2 * BLOCK as usize]);
        write(&device, 10 * BLOCK, vec![2; BLOCK as usize]);
        // It dies with its cache and has no space when it is back.
        server.store.refuse_writes(true);
        server.restart_after_power_cut();
        for _ in 0..3 {
            let failed = flush(&device).unwrap_err().to_string();
            assert!(failed.contains("could") || failed.contains("written again"), "{failed}");
        }
        let stale =
            device.execute(DeviceRequest::Read { offset_bytes: BLOCK, buffer: vec![0; BLOCK as usize] });
        assert!(matches!(&stale, Err(DeviceError::Io(text)) if text.contains("older")), "{stale:?}");
        assert!(read(&device, 20 * BLOCK, BLOCK as usize) == vec![0; BLOCK as usize]);
        server.store.refuse_writes(false);
        // Others may be forced; what is lost stays so.
        device
            .execute(DeviceRequest::Write {
                offset_bytes: 30 * BLOCK,
                data: vec![3; BLOCK as usize],
                fua: true,
            })
            .unwrap();
        flush(&device).unwrap_err();
        write(&device, 0, vec![4; 2 * BLOCK as usize]);
        assert!(read(&device, 0, BLOCK as usize) == vec![4; BLOCK as usize]);
        flush(&device).unwrap_err();
        device.execute(DeviceRequest::Discard { offset_bytes: 10 * BLOCK, length_bytes: BLOCK }).unwrap();
        flush(&device).unwrap();
        server.restart_after_power_cut();
        flush(&device).unwrap();
        assert!(read(&device, 0, 2 * BLOCK as usize) == vec![4; 2 * BLOCK as usize]);
    });
}

#[test]
fn initiator_flush_hides_no_loss() {
    within(120, || {
        let mut server = Server::start(16 * MIB);
        let (_, device) = open(options(server.address()));
        write(&device, 15 * MIB, vec![1; BLOCK as usize]);
        server.store.refuse_writes(true);
        server.restart_after_power_cut();
        // Until it was found again.
        read(&device, 0, BLOCK as usize);
        server.store.refuse_writes(false);
        // More than is kept without a flush.
        for number in 0..160 {
            write(&device, number % 15 * MIB, vec![2; MIB as usize]);
        }
        for _ in 0..2 {
            assert!(flush(&device).is_err());
        }
        write(&device, 15 * MIB, vec![1; BLOCK as usize]);
        flush(&device).unwrap();
    });
}

#[test]
fn interrupted_repetition_restarts() {
    within(120, || {
        let mut server = Server::start(8 * MIB);
        let wire = Wire::connect(server.address());
        let controller = NvmeController::connect(ControllerOptions {
            queues: 1,
            ..ControllerOptions::new(wire.address.to_string(), NQN)
        })
        .unwrap();
        let device = controller.namespace(1).unwrap();
        // Longer than what a capsule carries, so that the target asks for the data.
        let data: Vec<u8> = (0..4 * MIB).map(|position| (position / 512) as u8).collect();
        write(&device, 0, data.clone());
        wire.expect(R2T, |pdu| {
            pdu.truncate(pdu.len() / 2);
            false
        });
        server.restart_after_power_cut();
        flush(&device).unwrap();
        assert!(wire.has_happened() && server.store.durable()[..data.len()] == data[..]);
        assert!(controller.figures().reconnects >= 1);
    });
}

#[test]
fn another_volume_of_the_same_name_gets_nothing() {
    within(120, || {
        let mut server = Server::start(MIB);
        let (controller, device) = open(options(server.address()));
        write(&device, 0, vec![1; BLOCK as usize]);
        server.restart_as_another();
        assert_eq!(flush(&device), Err(DeviceError::Gone));
        let refused =
            device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: false });
        assert_eq!(refused, Err(DeviceError::Gone));
        let message = controller.namespaces().unwrap_err().to_string();
        assert!(message.contains("not the one that it was"), "{message}");
        let store = &server.store;
        let found =
            store.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![9; MIB as usize] }).unwrap();
        assert!(found.iter().all(|byte| *byte == 0));
        // A new connection may use it.
        let (_, device) = open(options(server.address()));
        write(&device, 0, vec![1; BLOCK as usize]);
    });
}

#[test]
fn volume_shrunk_while_away_loses_nothing_that_counts() {
    within(120, || {
        let mut server = Server::start(2 * MIB);
        let (_, device) = open(options(server.address()));
        write(&device, 0, vec![1; BLOCK as usize]);
        write(&device, MIB + MIB / 2, vec![1; BLOCK as usize]);
        server.stop();
        server.store.resize(MIB);
        server.restart_after_power_cut();
        flush(&device).unwrap();
        assert!(read(&device, 0, BLOCK as usize) == vec![1; BLOCK as usize]);
    });
}

#[test]
fn record_is_bounded_during_initiator_flush() {
    within(120, || {
        const WRITES: u64 = 160;
        let server = Server::start(WRITES * MIB);
        let (_, device) = open(options(server.address()));
        server.store.hold_flushes(true);
        let (sender, receiver) = mpsc::channel();
        for number in 0..WRITES {
            let sender = sender.clone();
            let done = Box::new(move |completion| sender.send(completion).unwrap());
            let (offset_bytes, data) = (number * MIB, vec![number as u8; MIB as usize]);
            device.submit(DeviceRequest::Write { offset_bytes, data, fua: false }, done);
            assert!(device.kept_bytes() <= 128 << 20, "{} bytes", device.kept_bytes());
        }
        // Exactly as many as are let through.
        for _ in 0..128 {
            receiver.recv().unwrap().unwrap();
        }
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(200)).is_err());
        assert_eq!(device.kept_bytes(), 128 << 20);
        server.store.hold_flushes(false);
        for _ in 128..WRITES {
            receiver.recv().unwrap().unwrap();
        }
        assert!(read(&device, (WRITES - 1) * MIB, MIB as usize) == vec![(WRITES - 1) as u8; MIB as usize]);
        flush(&device).unwrap();
    });
}

#[test]
fn second_host_gets_write_conflict() {
    within(60, || {
        let server = Server::start(MIB);
        let (controller, device) = open(options(server.address()));
        write(&device, 0, vec![1; BLOCK as usize]);
        let (_, second) = open(options(server.address()).with_host_nqn("nqn.2026-01.org.example:second"));
        let refused =
            second.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![2; 4096], fua: false });
        assert!(
            matches!(&refused, Err(DeviceError::Io(text)) if text.contains("another host")),
            "{refused:?}"
        );
        assert!(read(&second, 0, BLOCK as usize) == vec![1; BLOCK as usize]);
        drop((controller, device));
        write(&second, 0, vec![2; BLOCK as usize]);
    });
}

#[test]
fn second_process_of_same_host_gets_write_conflict() {
    within(60, || {
        let server = Server::start(MIB);
        let (controller, device) = open(options(server.address()));
        write(&device, 0, vec![1; BLOCK as usize]);
        let (_, second) = open(options(server.address()));
        // It waits for a sign of life of the first one, which might be dead.
        write(&device, BLOCK, vec![1; BLOCK as usize]);
        let refused =
            second.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![2; 4096], fua: false });
        assert!(
            matches!(&refused, Err(DeviceError::Io(text)) if text.contains("another process")),
            "{refused:?}"
        );
        drop((controller, device));
        write(&second, 0, vec![2; BLOCK as usize]);
    });
}

/// Cut off for so long that another host took over, and left again: what is kept here must not be written over its
/// data.
#[test]
fn host_absent_during_foreign_writes_stops_writing() {
    within(60, || {
        let server = Server::start(MIB);
        let wire = Wire::connect(server.address());
        let (controller, device) = open(options(wire.address));
        write(&device, 0, vec![1; BLOCK as usize]);
        wire.cut(true);
        // As if its time were over.
        let leave = server.subsystem();
        while !leave.queues().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        leave.namespace(1).unwrap().release();
        let second = options(server.address()).with_host_nqn("nqn.2026-01.org.example:second");
        {
            let (_controller, second) = open(second);
            write(&second, 0, vec![2; BLOCK as usize]);
            flush(&second).unwrap();
        }
        wire.cut(false);
        assert_eq!(flush(&device), Err(DeviceError::Gone));
        let message = controller.namespaces().unwrap_err().to_string();
        assert!(message.contains("another host, or another process on this one, wrote"), "{message}");
        assert!(server.store.durable()[..BLOCK as usize].iter().all(|byte| *byte == 2));
    });
}

/// Its first write has not been answered when the connection is lost: an earlier writer is no change then.
#[test]
fn earlier_foreign_writes_do_not_block_return() {
    within(60, || {
        let server = Server::start(MIB);
        {
            let earlier = options(server.address()).with_host_nqn("nqn.2026-01.org.example:earlier");
            let (_controller, earlier) = open(earlier);
            write(&earlier, 0, vec![2; BLOCK as usize]);
        }
        let wire = Wire::connect(server.address());
        let (_controller, device) = open(options(wire.address));
        wire.cut(true);
        let writing = {
            let device = device.clone();
            std::thread::spawn(move || write(&device, 0, vec![1; BLOCK as usize]))
        };
        while !server.subsystem().queues().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        wire.cut(false);
        writing.join().unwrap();
        assert!(read(&device, 0, BLOCK as usize) == vec![1; BLOCK as usize]);
    });
}
