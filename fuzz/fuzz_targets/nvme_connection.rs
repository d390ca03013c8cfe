//! A host's bytes on a connection of the NVMe/TCP target: the target goes on after any of them.
//!
//! The first byte chooses how far the connection comes by itself before the input takes over: nowhere, begun, an admin queue that is
//! enabled, or an I/O queue of a controller that another connection holds. Then each record of the input is a command, or bytes as they are.

#![no_main]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use underlay_nvme::command::{DatasetRange, NvmeCommand, SglDescriptor};
use underlay_nvme::fabrics::{
    ANY_CONTROLLER, CC_ENABLE, CC_ENTRY_SIZES, ConnectCommand, ConnectData, PropertySet, property,
};
use underlay_nvme::pdu::{DataTransfer, Digests, IcReq, Pdu, PduFraming};
use underlay_nvme::target::{AllowedHosts, NamespaceConfig, NvmeTarget, SubsystemConfig, TargetConfig};
use underlay_storage::device::{BlockDevice, CompletionCallback, DeviceGeometry, DeviceRequest};

const NQN: &str = "nqn.2026-01.fuzz:volume";

/// Takes everything and keeps nothing.
struct Nothing;

impl BlockDevice for Nothing {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: 1 << 20, block_bytes: 512, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(request.check(&self.geometry()).map(|()| match request {
            DeviceRequest::Read { buffer, .. } => buffer,
            _ => Vec::new(),
        }));
    }
}

struct Served {
    target: NvmeTarget,
    /// Holds the controller to which I/O queues are connected.
    _admin: TcpStream,
    controller_id: u16,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let config =
            TargetConfig { listen: vec![(Ipv4Addr::LOCALHOST, 0).into()], ..TargetConfig::default() };
        let target = NvmeTarget::start(config).expect("loopback can be listened on");
        let (nqn, serial_number) = (NQN.to_owned(), "fuzz".to_owned());
        let subsystem = target
            .subsystems()
            .add(SubsystemConfig { nqn, serial_number, hosts: AllowedHosts::Any(None) })
            .expect("a new subsystem");
        let namespace = NamespaceConfig { nsid: 1, uuid: [1; 16], device: Arc::new(Nothing) };
        subsystem.add_namespace(namespace).expect("a new namespace");
        let mut admin = TcpStream::connect(target.addresses()[0]).expect("the target listens");
        let mut said = ic_req(Digests::default());
        said.extend(connect(0, ANY_CONTROLLER));
        said.extend(enable());
        admin.write_all(&said).expect("the target takes it");
        // ICResp, and the two answers: the first has the controller's ID.
        let mut answer = [0; 128 + 24 + 24];
        admin.read_exact(&mut answer).expect("the target answers");
        let controller_id = u16::from_le_bytes([answer[136], answer[137]]);
        Served { target, _admin: admin, controller_id }
    })
}

fn ic_req(digests: Digests) -> Vec<u8> {
    let request = IcReq { format_version: 0, data_alignment_bytes: 4, digests, max_r2t: 1 };
    PduFraming::default().encode(&Pdu::IcReq(request), &[])
}

fn capsule(command: &NvmeCommand, data: &[u8]) -> Vec<u8> {
    PduFraming::default().encode(&Pdu::CapsuleCmd(command.encode()), data)
}

fn connect(queue_id: u16, controller_id: u16) -> Vec<u8> {
    let connect = ConnectCommand { record_format: 0, queue_id, sq_size: 31, attributes: 0, kato_ms: 0 };
    let data = ConnectData {
        host_id: [1; 16],
        controller_id,
        subsystem_nqn: NQN.to_owned(),
        host_nqn: "nqn.2014-08.org.nvmexpress:fuzz".to_owned(),
    };
    capsule(&connect.to_command(1), &data.encode())
}

fn enable() -> Vec<u8> {
    let value = u64::from(CC_ENABLE | CC_ENTRY_SIZES);
    capsule(&PropertySet { offset: property::CC, is_wide: false, value }.to_command(2), &[])
}

/// One record: a command with small fields out of few bytes, data for it, or bytes as they are. And what is left.
fn record<'a>(input: &'a [u8], said: &mut Vec<u8>) -> &'a [u8] {
    let Some((&[kind, opcode, a, b, c, d], rest)) = input.split_first_chunk::<6>() else {
        said.extend(input);
        return &[];
    };
    let length = (usize::from(a) * 64).min(rest.len()) / 4 * 4;
    match kind % 4 {
        0 => {
            let sgl = if b & 1 == 0 {
                SglDescriptor::transport(u32::from(c) * 512)
            } else {
                SglDescriptor::new_in_capsule(length as u32)
            };
            let mut command = NvmeCommand::new(opcode, u16::from(a), u32::from(b >> 1 & 3), sgl);
            command.dwords = [u32::from(c), u32::from(d) >> 4, u32::from(d), 0, 0, 0];
            let data = if sgl.is_in_capsule() { &rest[..length] } else { &[] };
            said.extend(capsule(&command, data));
            &rest[data.len()..]
        }
        1 => {
            let data = &rest[..length];
            let transfer = DataTransfer {
                cid: u16::from(b),
                transfer_tag: u16::from(c & 3),
                offset_bytes: u32::from(c >> 2) * 64,
                length_bytes: length as u32,
                is_last: d & 1 != 0,
                is_success: false,
            };
            said.extend(PduFraming::default().encode(&Pdu::H2cData(transfer), data));
            &rest[length..]
        }
        2 => {
            let range = DatasetRange { attributes: 0, blocks: u32::from(b), lba: u64::from(c) };
            let mut command = NvmeCommand::new(9, u16::from(a), 1, SglDescriptor::new_in_capsule(16));
            command.dwords = [u32::from(d & 1), 4, 0, 0, 0, 0];
            said.extend(capsule(&command, &range.encode()));
            rest
        }
        _ => {
            said.extend(&rest[..length]);
            &rest[length..]
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, mut rest)) = data.split_first() else { return };
    let served = served();
    let mut said = Vec::new();
    match how % 8 {
        0 => {}
        1 => said = ic_req(Digests { header: how & 8 != 0, data: how & 16 != 0 }),
        2..=4 => {
            said = ic_req(Digests::default());
            said.extend(connect(0, ANY_CONTROLLER));
            said.extend(enable());
        }
        _ => {
            said = ic_req(Digests::default());
            said.extend(connect(1 + u16::from(how >> 4), served.controller_id));
        }
    }
    while !rest.is_empty() {
        rest = record(rest, &mut said);
    }
    served.target.converse(&said);
    // The controller's own connection is there, and no other.
    assert_eq!(served.target.connections().len(), 1);
});
