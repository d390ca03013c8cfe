//! A target that says anything: the initiator gives an error, or goes on.
//!
//! The first byte chooses how far the target behaves before the input takes over: not at all, a greeting, or so many right answers to
//! the commands that come first. Then each record of the input is what is said next: an answer, data, a demand for data,
//! or bytes as they are; some wait for the next command before.

#![no_main]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use underlay_nvme::command::CompletionEntry;
use underlay_nvme::identify::{ControllerData, IDENTIFY_BYTES};
use underlay_nvme::initiator::{ControllerOptions, NvmeController};
use underlay_nvme::pdu::{DataTransfer, Digests, IcResp, Pdu, PduFraming, R2t};
use underlay_nvme::status::NvmeStatus;

fn framed(pdu: &Pdu, data: &[u8]) -> Vec<u8> {
    PduFraming::default().encode(pdu, data)
}

/// Commands that are sent one after the other all have this identifier.
fn answer(result: u64) -> Vec<u8> {
    let completion = CompletionEntry { result, sq_head: 0, sq_id: 0, cid: 0, status: NvmeStatus::SUCCESS };
    framed(&Pdu::CapsuleResp(completion.encode()), &[])
}

fn page(data: &[u8]) -> Vec<u8> {
    let length_bytes = data.len() as u32;
    let transfer = DataTransfer {
        cid: 0,
        transfer_tag: 0,
        offset_bytes: 0,
        length_bytes,
        is_last: true,
        is_success: true,
    };
    framed(&Pdu::C2hData(transfer), data)
}

/// What Connect, the enabling and the first questions are answered with.
fn right_answers() -> [Vec<u8>; 9] {
    const CAP: u64 = 255 | 1 << 24 | 1 << 37;
    const READY: u64 = 1;
    let controller = ControllerData { mdts: 8, max_commands: 64, ..ControllerData::default() }.encode();
    [
        answer(1),
        answer(CAP),
        answer(0),
        answer(READY),
        page(&controller),
        page(&[0; IDENTIFY_BYTES]),
        answer(0),
        answer(0),
        answer(CAP),
    ]
}

/// One capsule of the initiator.
fn take_command(mut stream: &TcpStream) -> io::Result<()> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let total = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    stream.read_exact(&mut vec![0; total.saturating_sub(head.len()).min(1 << 20)])
}

/// One record of the input, and what is left. Whether to wait for a command before it is said.
fn record(input: &[u8]) -> (bool, Vec<u8>, &[u8]) {
    let Some((&[kind, a, b, c, d, e], rest)) = input.split_first_chunk::<6>() else {
        return (false, input.to_vec(), &[]);
    };
    let length = (usize::from(a) * 64).min(rest.len()) / 4 * 4;
    let (data, behind) = rest.split_at(length);
    let cid = u16::from(b & 3);
    let offset_bytes = u32::from(c) * 64;
    let waits = kind & 8 != 0;
    match kind % 4 {
        0 => {
            let status = NvmeStatus::from_field(u16::from_le_bytes([d, e]));
            let completion = CompletionEntry { result: u64::from(c), sq_head: 0, sq_id: 0, cid, status };
            (waits, framed(&Pdu::CapsuleResp(completion.encode()), &[]), rest)
        }
        1 => {
            let transfer = DataTransfer {
                cid,
                transfer_tag: 0,
                offset_bytes,
                length_bytes: length as u32,
                is_last: d & 1 != 0,
                is_success: d & 2 != 0,
            };
            (waits, framed(&Pdu::C2hData(transfer), data), behind)
        }
        2 => {
            let r2t = R2t { cid, transfer_tag: u16::from(d), offset_bytes, length_bytes: u32::from(e) * 64 };
            (waits, framed(&Pdu::R2t(r2t), &[]), rest)
        }
        _ => (waits, data.to_vec(), behind),
    }
}

fn speak(mut stream: &TcpStream, data: &[u8]) -> io::Result<()> {
    let Some((&how, mut rest)) = data.split_first() else { return Ok(()) };
    stream.set_read_timeout(Some(Duration::from_millis(20)))?;
    stream.read_exact(&mut [0; 128])?;
    if how & 1 != 0 {
        let digests = Digests::default();
        let greeting =
            IcResp { format_version: 0, data_alignment_bytes: 4, digests, max_h2c_data_bytes: 4096 };
        stream.write_all(&framed(&Pdu::IcResp(greeting), &[]))?;
        for said in right_answers().iter().take(usize::from(how >> 1) % 10) {
            take_command(stream)?;
            stream.write_all(said)?;
        }
    }
    while !rest.is_empty() {
        let (waits, said, behind) = record(rest);
        if waits {
            take_command(stream)?;
        }
        stream.write_all(&said)?;
        rest = behind;
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let data = data.to_vec();
    let server = std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        // One connection is served, and the next is refused at once: so no controller comes of it.
        drop(listener);
        let _ = speak(&stream, &data);
    });
    let connect_timeout = Duration::from_millis(200);
    let options = ControllerOptions {
        connect_timeout,
        ..ControllerOptions::new(address, "nqn.2026-01.org.example:any")
    };
    assert!(NvmeController::connect(options).is_err());
    let _ = server.join();
});
