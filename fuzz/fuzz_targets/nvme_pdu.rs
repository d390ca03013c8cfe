//! A stream of NVMe/TCP PDUs, at both sides and with any digests, however it is cut into pieces; and what they carry.

#![no_main]

use std::io::{self, Read};

use libfuzzer_sys::fuzz_target;
use underlay_nvme::command::{CompletionEntry, NvmeCommand};
use underlay_nvme::fabrics::{AuthCommand, ConnectCommand, ConnectData, PropertyGet, PropertySet};
use underlay_nvme::features::{GetFeatures, SetFeatures};
use underlay_nvme::identify::{ControllerData, IdentifyCommand, NamespaceData, NamespaceDescriptors};
use underlay_nvme::log_page::{DiscoveryEntry, GetLogPage};
use underlay_nvme::pdu::{ConnectionSide, Digests, Pdu, PduDecoder, PduReceiver};

/// Bytes that come in pieces of one length.
struct Pieces<'a> {
    bytes: &'a [u8],
    length: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.length.min(into.len());
        self.bytes.read(&mut into[..length])
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[options, length], bytes)) = data.split_first_chunk::<2>() else { return };
    let arriving = PduDecoder {
        side: if options & 1 == 0 { ConnectionSide::Controller } else { ConnectionSide::Host },
        digests: Digests { header: options & 2 != 0, data: options & 4 != 0 },
        data_alignment_bytes: (options >> 3) * 4 + 4,
        max_capsule_data_bytes: 8192,
        max_data_bytes: 8192,
    };
    let pieces = Pieces { bytes, length: usize::from(length) + 1 };
    let mut receiver = PduReceiver::new(pieces, arriving, 256);
    while let Ok(Some((pdu, length))) = receiver.next() {
        assert!(length <= 8192);
        let mut carried = vec![0; length];
        if receiver.read_data(&mut carried).is_err() {
            break;
        }
        look_into(&pdu);
        if let Ok(page) = <&[u8; 4096]>::try_from(&carried[..]) {
            let _ = ControllerData::decode(page);
            let _ = NamespaceData::decode(page);
            let _ = NamespaceDescriptors::decode(page);
        }
        if let Ok(entry) = <&[u8; 1024]>::try_from(&carried[..]) {
            let _ = DiscoveryEntry::decode(entry);
            let _ = ConnectData::decode(entry);
        }
    }
});

fn look_into(pdu: &Pdu) {
    match pdu {
        Pdu::CapsuleCmd(bytes) => {
            let command = NvmeCommand::decode(bytes);
            let _ = (ConnectCommand::from_command(&command), AuthCommand::from_command(&command));
            let _ = (PropertyGet::from_command(&command), PropertySet::from_command(&command));
            let _ = (GetFeatures::from_command(&command), SetFeatures::from_command(&command));
            let _ = (IdentifyCommand::from_command(&command), GetLogPage::from_command(&command));
        }
        Pdu::CapsuleResp(bytes) => {
            let _ = CompletionEntry::decode(bytes).status.to_string();
        }
        _ => {}
    }
}
