//! Everything that is encoded decodes to the same, and nothing that is decoded panics.

use std::io::{self, Read};

use proptest::prelude::*;
use underlay_nvme::command::{CompletionEntry, DatasetRange, NvmeCommand, SglDescriptor};
use underlay_nvme::fabrics::{
    AuthCommand, ConnectCommand, ConnectData, InvalidParameter, PropertyGet, PropertySet,
};
use underlay_nvme::features::{GetFeatures, QueueCount, SetFeatures};
use underlay_nvme::identify::{
    ControllerData, ControllerKind, IdentifyCommand, NamespaceData, NamespaceDescriptors, NvmControllerData,
    decode_namespace_list, encode_controller_list, encode_namespace_list,
};
use underlay_nvme::log_page::{
    AsyncEvent, DiscoveredKind, DiscoveryEntry, DiscoveryHead, ErrorEntry, GetLogPage, SmartLog,
    decode_changed_namespaces, encode_changed_namespaces,
};
use underlay_nvme::pdu::{
    ConnectionSide, DataState, DataTransfer, Digests, FatalStatus, IcReq, IcResp, Pdu, PduDecoder,
    PduFraming, PduReceiver, R2t, ReceiveError, TermReq, decode,
};
use underlay_nvme::status::NvmeStatus;

fn digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

fn alignment() -> impl Strategy<Value = u8> {
    (1..=32_u8).prop_map(|dwords| dwords * 4)
}

fn term_req() -> impl Strategy<Value = TermReq> {
    let status = prop_oneof![
        Just(FatalStatus::InvalidHeaderField),
        Just(FatalStatus::HeaderDigestError),
        Just(FatalStatus::LimitExceeded),
        (7..u16::MAX).prop_map(FatalStatus::Other),
    ];
    (status, any::<u32>()).prop_map(|(status, information)| TermReq { status, information })
}

/// A PDU, its data, and the side at which it arrives.
fn pdu() -> impl Strategy<Value = (Pdu, Vec<u8>, ConnectionSide)> {
    let data = || prop::collection::vec(any::<u8>(), 0..3000);
    let transfer = (any::<u16>(), any::<u16>(), any::<u32>(), any::<bool>(), any::<bool>());
    let ic = || (any::<u16>(), alignment(), digests(), 1..u32::MAX);
    prop_oneof![
        ic().prop_map(|(format_version, data_alignment_bytes, digests, max_r2t)| {
            let request = IcReq { format_version, data_alignment_bytes, digests, max_r2t };
            (Pdu::IcReq(request), Vec::new(), ConnectionSide::Controller)
        }),
        ic().prop_map(|(format_version, data_alignment_bytes, digests, max_h2c_data_bytes)| {
            let response = IcResp { format_version, data_alignment_bytes, digests, max_h2c_data_bytes };
            (Pdu::IcResp(response), Vec::new(), ConnectionSide::Host)
        }),
        (term_req(), prop::collection::vec(any::<u8>(), 0..=128), any::<bool>()).prop_map(
            |(request, header, to_host)| match to_host {
                true => (Pdu::C2hTermReq(request), header, ConnectionSide::Host),
                false => (Pdu::H2cTermReq(request), header, ConnectionSide::Controller),
            }
        ),
        (any::<[u8; 64]>(), data()).prop_map(|(bytes, data)| (
            Pdu::CapsuleCmd(bytes),
            data,
            ConnectionSide::Controller
        )),
        any::<[u8; 16]>().prop_map(|bytes| (Pdu::CapsuleResp(bytes), Vec::new(), ConnectionSide::Host)),
        (transfer, data(), any::<bool>()).prop_map(
            |((cid, tag, offset_bytes, is_last, is_success), data, to_host)| {
                let length_bytes = data.len() as u32;
                let transfer_tag = if to_host { 0 } else { tag };
                let is_success = is_success && to_host;
                let transfer =
                    DataTransfer { cid, transfer_tag, offset_bytes, length_bytes, is_last, is_success };
                match to_host {
                    true => (Pdu::C2hData(transfer), data, ConnectionSide::Host),
                    false => (Pdu::H2cData(transfer), data, ConnectionSide::Controller),
                }
            }
        ),
        (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
            |(cid, transfer_tag, offset_bytes, length_bytes)| {
                let r2t = R2t { cid, transfer_tag, offset_bytes, length_bytes };
                (Pdu::R2t(r2t), Vec::new(), ConnectionSide::Host)
            }
        ),
    ]
}

fn arriving(side: ConnectionSide, framing: PduFraming) -> PduDecoder {
    PduDecoder {
        side,
        digests: framing.digests,
        data_alignment_bytes: framing.data_alignment_bytes,
        max_capsule_data_bytes: 8192,
        max_data_bytes: 8192,
    }
}

/// Bytes that come in pieces as long as the numbers say, over and over.
struct Pieces {
    bytes: io::Cursor<Vec<u8>>,
    lengths: Vec<usize>,
    turn: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.lengths[self.turn % self.lengths.len()].min(buffer.len());
        self.turn += 1;
        self.bytes.read(&mut buffer[..length])
    }
}

proptest! {
    #[test]
    fn pdus_survive_the_wire_however_it_is_cut(
        digests in digests(),
        data_alignment_bytes in alignment(),
        pdus in prop::collection::vec(pdu(), 1..12),
        lengths in prop::collection::vec(1..4000_usize, 1..6),
        take_bytes in 1..2000_usize,
    ) {
        let framing = PduFraming { digests, data_alignment_bytes };
        for side in [ConnectionSide::Host, ConnectionSide::Controller] {
            let pdus: Vec<_> = pdus.iter().filter(|(_, _, to)| *to == side).collect();
            let bytes: Vec<u8> = pdus.iter().flat_map(|(pdu, data, _)| framing.encode(pdu, data)).collect();
            let pieces = Pieces { bytes: io::Cursor::new(bytes), lengths: lengths.clone(), turn: 0 };
            let mut receiver = PduReceiver::new(pieces, arriving(side, framing), 512);
            for (pdu, data, _) in pdus {
                // Looking ahead changes nothing.
                prop_assert_eq!(receiver.is_ready(), receiver.is_ready());
                let (found, length) = receiver.next().unwrap().unwrap();
                prop_assert_eq!(&found, pdu);
                prop_assert_eq!(length, data.len());
                let mut received = vec![0; length / 2];
                for piece in received.chunks_mut(take_bytes) {
                    prop_assert_eq!(receiver.read_data(piece).unwrap(), DataState::Intact);
                }
                while received.len() < length {
                    let bytes = take_bytes.min(length - received.len());
                    prop_assert_eq!(receiver.append_data(&mut received, bytes).unwrap(), DataState::Intact);
                }
                prop_assert_eq!(&received, data);
            }
            prop_assert!(receiver.next().unwrap().is_none());
        }
    }

    #[test]
    fn flipped_bit_is_noticed_under_digests(
        (pdu, data, side) in pdu().prop_filter("with digests", |(pdu, ..)| {
            matches!(pdu, Pdu::CapsuleCmd(_) | Pdu::CapsuleResp(_) | Pdu::H2cData(_) | Pdu::C2hData(_) | Pdu::R2t(_))
        }),
        data_alignment_bytes in alignment(),
        index in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let framing = PduFraming { digests: Digests { header: true, data: true }, data_alignment_bytes };
        let mut bytes = framing.encode(&pdu, &data);
        let head = framing.head(&pdu, data.len());
        let headed = usize::from(head.as_bytes()[2]) + 4;
        let place = index.index(bytes.len());
        // Nothing protects the padding.
        prop_assume!(place < headed || place >= head.as_bytes().len());
        bytes[place] ^= 1 << bit;
        let mut receiver = PduReceiver::new(&bytes[..], arriving(side, framing), 512);
        match receiver.next() {
            Err(ReceiveError::Protocol(_) | ReceiveError::Truncated) => prop_assert!(place < headed),
            Err(ReceiveError::Io(error)) => prop_assert!(false, "{}", error),
            Ok(_) => prop_assert_eq!(receiver.skip_data().unwrap(), DataState::Damaged),
        }
    }

    #[test]
    fn truncated_stream_is_reported(
        (pdu, data, side) in pdu(),
        digests in digests(),
        index in any::<prop::sample::Index>(),
    ) {
        let framing = PduFraming { digests, data_alignment_bytes: 4 };
        let bytes = framing.encode(&pdu, &data);
        let cut = index.index(bytes.len());
        let mut receiver = PduReceiver::new(&bytes[..cut], arriving(side, framing), 512);
        let outcome = receiver.next().and_then(|found| receiver.skip_data().map(|_| found));
        match outcome {
            Ok(found) => prop_assert!(cut == 0 && found.is_none()),
            Err(error) => prop_assert!(matches!(error, ReceiveError::Truncated), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        kind in 0..12_u8,
        digests in digests(),
    ) {
        let framing = PduFraming { digests, data_alignment_bytes: 4 };
        for side in [ConnectionSide::Host, ConnectionSide::Controller] {
            let mut bytes = bytes.clone();
            let _ = decode(&bytes, &arriving(side, framing));
            // With a beginning that could be one's.
            if let [first, flags, header, ..] = &mut bytes[..] {
                (*first, *flags) = (kind, *flags & 0x0f);
                *header = [128, 128, 24, 24, 72, 24, 24, 24, 0, 24, 0, 0][usize::from(kind)];
            }
            let _ = decode(&bytes, &arriving(side, framing));
        }
    }

    #[test]
    fn commands_and_completions_keep_every_field(
        command in any::<[u8; 64]>(),
        completion in any::<[u8; 16]>(),
        range in any::<[u8; 16]>(),
    ) {
        let mut command = command;
        // Reserved bytes of the data's descriptor.
        command[36..39].fill(0);
        prop_assert_eq!(NvmeCommand::decode(&command).encode(), command);
        let mut completion = completion;
        // The phase tag, which means nothing over fabrics.
        completion[14] &= !1;
        prop_assert_eq!(CompletionEntry::decode(&completion).encode(), completion);
        prop_assert_eq!(DatasetRange::decode(&range).encode(), range);
    }

    #[test]
    fn fields_of_commands_come_back(words in any::<[u32; 6]>(), bytes in any::<[u8; 4]>()) {
        let [a, b, c, d, e, f] = words;
        let connect = ConnectCommand {
            record_format: a as u16, queue_id: b as u16, sq_size: c as u16, attributes: bytes[0], kato_ms: d,
        };
        prop_assert_eq!(ConnectCommand::from_command(&connect.to_command(1)), connect);
        let get = PropertyGet { offset: a, is_wide: bytes[0] > 9 };
        prop_assert_eq!(PropertyGet::from_command(&get.to_command(1)), get);
        let value = u64::from(b) << 32 | u64::from(c);
        let set = PropertySet { offset: a, is_wide: bytes[0] > 9, value };
        prop_assert_eq!(PropertySet::from_command(&set.to_command(1)), set);
        let authentication =
            AuthCommand { protocol: bytes[0], specific: [bytes[1], bytes[2]], length_bytes: a };
        prop_assert_eq!(AuthCommand::from_command(&authentication.to_send_command(1)), authentication);
        let identify =
            IdentifyCommand { cns: bytes[0], controller_id: a as u16, command_set: bytes[1], nsid: b };
        prop_assert_eq!(IdentifyCommand::from_command(&identify.to_command(1)), identify);
        let page = GetLogPage {
            page: bytes[0], specific: bytes[1] & 0x7f, retain_event: bytes[2] > 9, offset_bytes: value,
            length_bytes: (u64::from(e) + 1) * 4, offset_is_index: bytes[3] > 9, nsid: f,
        };
        prop_assert_eq!(GetLogPage::from_command(&page.to_command(1)), page);
        let features = SetFeatures { feature: bytes[0], save: bytes[1] > 9, dword11: a };
        prop_assert_eq!(SetFeatures::from_command(&features.to_command(1)), features);
        prop_assert_eq!(GetFeatures::from_command(&GetFeatures::current(bytes[0], 1)).feature, bytes[0]);
        prop_assert_eq!(QueueCount::from_value(a).to_value(), a);
        let parameter = InvalidParameter { offset: a as u16, is_in_data: bytes[0] > 9 };
        prop_assert_eq!(InvalidParameter::from_result(parameter.to_result()), parameter);
        prop_assert_eq!(AsyncEvent::from_result(AsyncEvent::from_result(u64::from(a)).to_result()),
            AsyncEvent::from_result(u64::from(a)));
    }

    #[test]
    fn connect_data_comes_back(host_id in any::<[u8; 16]>(), controller_id in any::<u16>(), name in "[a-z0-9.:-]{0,223}") {
        let data = ConnectData {
            host_id, controller_id, subsystem_nqn: name.clone(), host_nqn: name.chars().rev().collect(),
        };
        prop_assert_eq!(ConnectData::decode(&data.encode().try_into().unwrap()), data);
    }

    #[test]
    fn structures_come_back(numbers in any::<[u64; 8]>(), bytes in any::<[u8; 16]>(), power in 9..16_u32, text in "[A-Za-z0-9]{1,8}") {
        let [a, b, c, d, e, f, g, h] = numbers;
        let controller = ControllerData {
            serial_number: text.clone(), model_number: text.clone(), firmware_revision: text.clone(),
            may_have_several_controllers: a & 1 == 1, mdts: bytes[0], controller_id: a as u16, version: b as u32,
            oaes: c as u32, ctratt: d as u32, kind: ControllerKind::Discovery, shutdown_latency_us: e as u32,
            abort_limit: bytes[1], event_request_limit: bytes[2], firmware_updates: bytes[3],
            log_page_attributes: bytes[4], error_log_entries: bytes[5], keep_alive_granularity: f as u16,
            max_commands: g as u16, namespaces: h as u32, oncs: a as u16, fused_operations: b as u16,
            volatile_write_cache: bytes[6], sgls: c as u32, subsystem_nqn: text.clone(),
            io_command_capsule_units: d as u32, io_response_capsule_units: e as u32,
            in_capsule_data_offset_units: f as u16, max_sgl_descriptors: bytes[7],
        };
        prop_assert_eq!(ControllerData::decode(&controller.encode().try_into().unwrap()), controller);
        let namespace = NamespaceData {
            size_blocks: a, capacity_blocks: b, used_blocks: c, features: bytes[0] & 1, is_shared: d & 1 == 1,
            reads_zeros_after_deallocation: e & 1 == 1, write_zeroes_deallocates: f & 1 == 1,
            nvm_capacity_bytes: u128::from(g), preferred_blocks: h as u16 as u32, nguid: bytes,
            eui64: a.to_le_bytes(), block_bytes: 1 << power,
        };
        prop_assert_eq!(NamespaceData::decode(&namespace.encode().try_into().unwrap()), Some(namespace));
        prop_assert_eq!(NamespaceData::decode(&[0; 4096]), None);
        let descriptors = NamespaceDescriptors { nguid: Some(bytes), uuid: (a & 1 == 1).then_some(bytes), command_set: Some(0) };
        prop_assert_eq!(NamespaceDescriptors::decode(&descriptors.encode().try_into().unwrap()), descriptors);
        let nvm = NvmControllerData {
            write_zeroes_limit: bytes[0], dataset_ranges: bytes[1], dataset_range_blocks: a as u32, dataset_blocks: b,
        };
        prop_assert_eq!(NvmControllerData::decode(&nvm.encode().try_into().unwrap()), nvm);
        let smart = SmartLog {
            critical_warning: bytes[0], temperature_kelvin: a as u16, available_spare_percent: bytes[1],
            spare_threshold_percent: bytes[2], used_percent: bytes[3], data_units_read: u128::from(a),
            data_units_written: u128::from(b), read_commands: u128::from(c), write_commands: u128::from(d),
            power_on_hours: u128::from(e), media_errors: u128::from(f), error_log_entries: u128::from(g),
        };
        prop_assert_eq!(SmartLog::decode(&smart.encode().try_into().unwrap()), smart);
        let error = ErrorEntry {
            number: a, sq_id: b as u16, cid: c as u16,
                status: NvmeStatus::WRITE_FAULT.do_not_retry(), lba: d, nsid: e as u32,
        };
        prop_assert_eq!(ErrorEntry::decode(&error.encode()), error);
        let entry = DiscoveryEntry {
            transport: 3, address_family: bytes[0], kind: DiscoveredKind::Nvm, port_id: a as u16,
            subsystem_nqn: text.clone(), address: text.clone(), service: text,
        };
        prop_assert_eq!(DiscoveryEntry::decode(&entry.encode().try_into().unwrap()), entry);
        let head = DiscoveryHead { generation: a, entries: b };
        prop_assert_eq!(DiscoveryHead::decode(&head.encode().try_into().unwrap()), head);
    }

    #[test]
    fn lists_come_back(nsids in prop::collection::btree_set(1..5000_u32, 0..1500)) {
        let nsids: Vec<u32> = nsids.into_iter().collect();
        let first: Vec<u32> = nsids.iter().copied().take(1024).collect();
        let page: [u8; 4096] = encode_namespace_list(nsids.iter().copied()).try_into().unwrap();
        prop_assert_eq!(decode_namespace_list(&page), first.clone());
        let changed: [u8; 4096] = encode_changed_namespaces(&nsids).try_into().unwrap();
        let expected = (nsids.len() <= 1024).then_some(first);
        prop_assert_eq!(decode_changed_namespaces(&changed), expected);
        let controllers = encode_controller_list(nsids.iter().map(|nsid| *nsid as u16));
        prop_assert_eq!(usize::from(controllers[0]) | usize::from(controllers[1]) << 8, nsids.len().min(2047));
    }

    #[test]
    fn any_structure_is_decoded(bytes in prop::collection::vec(any::<u8>(), 4096)) {
        let page: [u8; 4096] = bytes.try_into().unwrap();
        let _ = ControllerData::decode(&page);
        let _ = NamespaceData::decode(&page);
        let _ = NamespaceDescriptors::decode(&page);
        let _ = DiscoveryEntry::decode(page[..1024].try_into().unwrap());
        let _ = decode_namespace_list(&page);
    }
}

#[test]
fn bytes_are_where_the_specification_has_them() {
    let digests = Digests { header: true, data: false };
    let request = IcReq { format_version: 0, data_alignment_bytes: 8, digests, max_r2t: 3 };
    let bytes = PduFraming::default().encode(&Pdu::IcReq(request), &[]);
    assert_eq!(&bytes[..16], &[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0]);
    // The check value of CRC32C, of the digits 1 to 9.
    assert_eq!(u32::from_le_bytes(PduFraming::data_digest(b"123456789")), 0xe306_9283);
    let framing = PduFraming { digests: Digests { header: true, data: true }, data_alignment_bytes: 64 };
    let command = NvmeCommand::new(1, 0x1234, 1, SglDescriptor::new_in_capsule(4));
    let bytes = framing.encode(&Pdu::CapsuleCmd(command.encode()), &[1, 2, 3, 4]);
    assert_eq!(&bytes[..8], &[4, 3, 72, 128, 136, 0, 0, 0]);
    assert_eq!(&bytes[8..12], &[1, 0x40, 0x34, 0x12]);
    // The descriptor: no address, four bytes, a data block at an offset.
    assert_eq!(&bytes[32..48], &[0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes.len(), 136);
    let status = NvmeStatus::CAPACITY_EXCEEDED.do_not_retry();
    assert_eq!(status.to_field(), 0x8102);
    assert_eq!(status.to_string(), "Capacity Exceeded (0x081), do not retry");
}
