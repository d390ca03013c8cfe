//! A target that says anything: the initiator gives an error, or goes on.

#![no_main]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use underlay_nvme::initiator::{Controller, Options};
use underlay_nvme::pdu::{Digests, Framing, IcResp, Pdu};

static LISTENER: LazyLock<TcpListener> =
    LazyLock::new(|| TcpListener::bind("127.0.0.1:0").expect("loopback has a port"));

fuzz_target!(|data: &[u8]| {
    let address = LISTENER.local_addr().expect("it is bound").to_string();
    let data = data.to_vec();
    let server = std::thread::spawn(move || {
        let Ok((mut stream, _)) = LISTENER.accept() else { return };
        let greeting = IcResp {
            format_version: 0,
            data_alignment_bytes: 4,
            digests: Digests::default(),
            max_h2c_data_bytes: 4096,
        };
        let mut request = [0; 128];
        // Half of the inputs get past the greeting.
        let greets = data.first().is_some_and(|byte| byte & 1 == 1);
        let greeting =
            if greets { Framing::default().encode(&Pdu::IcResp(greeting), &[]) } else { Vec::new() };
        let _ = stream.read_exact(&mut request);
        let _ = stream.write_all(&greeting).and_then(|()| stream.write_all(&data[data.len().min(1)..]));
    });
    let connect_timeout = Duration::from_millis(200);
    let options = Options { connect_timeout, ..Options::new(address, "nqn.2026-01.org.example:any") };
    // One connection is served and then closed, so no controller comes of it.
    assert!(Controller::connect(options).is_err());
    let _ = server.join();
});
