//! Our initiator when what arrives from the target is not as it should be: a wire in between changes it once. Nothing
//! that was asked for fails, and no wrong byte is given out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use underlay_nvme::initiator::{ControllerOptions, NvmeController};
use underlay_nvme::pdu::Digests;
use underlay_storage::device::{BlockDevice, DeviceRequest};

use crate::served::{MIB, NQN, Server, within};

const C2H_DATA: u8 = 7;
pub(crate) const R2T: u8 = 9;
const RESPONSE: u8 = 5;

/// Changes one PDU, and says whether the connection goes on.
pub(crate) type Change = fn(&mut Vec<u8>) -> bool;

/// A mishap that waits for the next PDU of its type.
type Awaited = Arc<Mutex<Option<(u8, Change)>>>;

/// Stands between initiator and target.
pub(crate) struct Wire {
    pub address: SocketAddr,
    awaited: Awaited,
    is_cut: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    pub(crate) fn connect(target: SocketAddr) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire {
            address: listener.local_addr().unwrap(),
            awaited: Awaited::default(),
            is_cut: Arc::default(),
            connections: Arc::default(),
        };
        let awaited = Arc::clone(&wire.awaited);
        let (is_cut, connections) = (Arc::clone(&wire.is_cut), Arc::clone(&wire.connections));
        // Ends with the test's process: nobody comes any more.
        thread::spawn(move || {
            for host in listener.incoming() {
                let host = host.unwrap();
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                // One that is away for a moment refuses, and so do we.
                let Ok(target) = TcpStream::connect(target) else { continue };
                connections.lock().unwrap().extend([host.try_clone().unwrap(), target.try_clone().unwrap()]);
                let (mut from_host, mut to_target) = (host.try_clone().unwrap(), target.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut from_host, &mut to_target);
                    let _ = to_target.shutdown(Shutdown::Both);
                });
                let awaited = Arc::clone(&awaited);
                thread::spawn(move || {
                    let _ = pass(&target, &host, &awaited);
                    let _ = (host.shutdown(Shutdown::Both), target.shutdown(Shutdown::Both));
                });
            }
        });
        wire
    }

    /// Ends all connections, and lets none through until it is mended.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn expect(&self, kind: u8, change: Change) {
        *self.awaited.lock().unwrap() = Some((kind, change));
    }

    pub(crate) fn has_happened(&self) -> bool {
        self.awaited.lock().unwrap().is_none()
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, awaited: &Mutex<Option<(u8, Change)>>) -> io::Result<()> {
    loop {
        let mut pdu = vec![0; 8];
        from.read_exact(&mut pdu)?;
        pdu.resize(u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize, 0);
        from.read_exact(&mut pdu[8..])?;
        let change = awaited.lock().unwrap().take_if(|(kind, _)| *kind == pdu[0]);
        let goes_on = change.is_none_or(|(_, change)| change(&mut pdu));
        to.write_all(&pdu)?;
        if !goes_on {
            return Ok(());
        }
    }
}

/// A write and a read with each mishap, over one controller. How often the connection had to be made anew.
fn with_mishaps(digests: Digests, mishaps: &'static [(&'static str, u8, Change)]) -> u64 {
    within(120, move || {
        let server = Server::start(4 * MIB);
        let wire = Wire::connect(server.address());
        let options =
            ControllerOptions { digests, queues: 1, ..ControllerOptions::new(wire.address.to_string(), NQN) };
        let controller = NvmeController::connect(options).unwrap();
        let device = controller.namespace(1).unwrap();
        for (turn, (label, kind, change)) in mishaps.iter().enumerate() {
            let data: Vec<u8> = (0..256 << 10).map(|position| (position / 512 + turn) as u8).collect();
            wire.expect(*kind, *change);
            device
                .execute(DeviceRequest::Write { offset_bytes: 0, data: data.clone(), fua: false })
                .expect(label);
            let found = device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; data.len()] });
            assert!(found.expect(label) == data, "{label}");
            assert!(wire.has_happened(), "{label}");
        }
        controller.figures().reconnects
    })
}

#[test]
fn target_breaking_protocol_is_left_and_reconnected() {
    const MISHAPS: &[(&str, u8, Change)] = &[
        ("success before the last data", C2H_DATA, |pdu| {
            pdu[1] &= !4;
            true
        }),
        ("data of no command", C2H_DATA, |pdu| {
            pdu[8] ^= 0x55;
            true
        }),
        ("data that leaves something out", C2H_DATA, |pdu| {
            pdu[13] ^= 2;
            true
        }),
        ("data of another length", C2H_DATA, |pdu| {
            pdu[17] ^= 2;
            true
        }),
        ("unknown type", C2H_DATA, |pdu| {
            pdu[0] = 0x33;
            true
        }),
        ("a header of another length", RESPONSE, |pdu| {
            pdu[2] = 99;
            true
        }),
        ("an answer to nothing", RESPONSE, |pdu| {
            pdu[20] ^= 0x55;
            true
        }),
        ("data wanted that is not there", R2T, |pdu| {
            pdu[15] = 0x7f;
            true
        }),
        ("data wanted of no command", R2T, |pdu| {
            pdu[8] ^= 0x55;
            true
        }),
        ("the end in the middle of data", C2H_DATA, |pdu| {
            pdu.truncate(pdu.len() / 2);
            false
        }),
        ("the end in the middle of a header", RESPONSE, |pdu| {
            pdu.truncate(11);
            false
        }),
    ];
    assert_eq!(with_mishaps(Digests::default(), MISHAPS), MISHAPS.len() as u64);
}

#[test]
fn damaged_data_is_reread_and_damaged_header_disconnects() {
    const DATA: &[(&str, u8, Change)] = &[("damaged data", C2H_DATA, |pdu| {
        let middle = pdu.len() / 2;
        pdu[middle] ^= 1;
        true
    })];
    const HEADER: &[(&str, u8, Change)] = &[("a damaged header", C2H_DATA, |pdu| {
        pdu[9] ^= 1;
        true
    })];
    let digests = Digests { header: true, data: true };
    assert_eq!(with_mishaps(digests, DATA), 0);
    assert_eq!(with_mishaps(digests, HEADER), 1);
}
