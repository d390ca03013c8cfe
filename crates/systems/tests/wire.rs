//! The protocol: encoded messages are decoded, and no bytes do harm.

use std::io::{self, Read};

use proptest::prelude::*;
use underlay_systems::wire::{
    FrameBuffer, FrameError, MAX_FRAME_BYTES, RECORD_KEY, ValuesBuilder, WireOpcode, WireReply, WireRequest,
    WireStatus, WireValues, append_values, encode_reply, encode_request, encode_text_reply, set_service_ns,
};
use underlay_workload::client::{FieldSelection, FieldValues, FoundRecords};

fn field_values() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    prop::collection::vec((0..6u16, prop::collection::vec(any::<u8>(), 0..40)), 0..6)
}

fn buffer(fields: &[(u16, Vec<u8>)]) -> FieldValues {
    let mut values = FieldValues::default();
    fields.iter().for_each(|(field, value)| values.push(u32::from(*field), value));
    values
}

fn selector() -> impl Strategy<Value = FieldSelection> {
    prop_oneof![Just(FieldSelection::All), (0..u32::MAX).prop_map(FieldSelection::One)]
}

/// Gives its bytes in the given pieces, with an interruption before each.
struct Pieces<'a> {
    bytes: &'a [u8],
    sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
    interrupt: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupt = !self.interrupt;
        if self.interrupt {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let size = self.sizes.next().copied().unwrap_or(1).min(buffer.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(size);
        buffer[..size].copy_from_slice(now);
        self.bytes = later;
        Ok(size)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn request_survives_round_trip(
        id in any::<u32>(),
        opcode in prop::sample::select(&WireOpcode::ALL[..]),
        fields in selector(),
        number in any::<u64>(),
        key in prop::collection::vec(any::<u8>(), 0..50),
        values in field_values(),
    ) {
        let mut frame = Vec::new();
        encode_request(&mut frame, id, opcode, fields, number, &key, Some(&buffer(&values))).unwrap();
        prop_assert_eq!(frame[..4].to_vec(), (frame.len() as u32 - 4).to_le_bytes().to_vec());
        let request = WireRequest::decode(&frame[4..]).unwrap();
        prop_assert_eq!((request.id, request.opcode, request.fields, request.number), (id, opcode, fields, number));
        prop_assert_eq!(request.key, &key[..]);
        let decoded: Vec<_> = request.values.iter().map(|(field, value)| (field, value.to_vec())).collect();
        prop_assert_eq!(decoded, values);
        // Every shorter body is refused, and so is a longer one.
        for end in 4..frame.len() {
            prop_assert!(WireRequest::decode(&frame[4..end]).is_err());
        }
        frame.push(0);
        prop_assert_eq!(WireRequest::decode(&frame[4..]), Err(FrameError::LeftOver { bytes: 1 }));
    }

    #[test]
    fn reply_survives_round_trip(
        id in any::<u32>(),
        status in prop::sample::select(&WireStatus::ALL[..]),
        service_ns in any::<u64>(),
        number in any::<u64>(),
        values in field_values(),
    ) {
        let mut frame = Vec::new();
        encode_reply(&mut frame, id, status, number, |out| append_values(&buffer(&values), out)).unwrap();
        set_service_ns(&mut frame, service_ns);
        let reply = WireReply::decode(&frame[4..]).unwrap();
        prop_assert_eq!((reply.id, reply.status, reply.service_ns, reply.number), (id, status, service_ns, number));
        let mut decoded = FieldValues::default();
        reply.values.copy_to(&mut decoded);
        prop_assert_eq!(decoded, buffer(&values));
    }

    #[test]
    fn records_come_out_as_they_went_in(
        records in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..9), field_values()), 0..6),
    ) {
        let mut raw = Vec::new();
        let mut builder = ValuesBuilder::new(&mut raw);
        for (key, fields) in &records {
            builder.push(u32::from(RECORD_KEY), key).unwrap();
            for (field, value) in fields {
                builder.push(u32::from(*field), value).unwrap();
            }
        }
        builder.finish();
        let mut found = FoundRecords::default();
        // What was there before is gone.
        found.push(b"old").push(7, b"x");
        WireValues::parse(&raw).unwrap().copy_records_to(&mut found).unwrap();
        let found: Vec<_> = found.iter().map(|(key, values)| (key.to_vec(), values.clone())).collect();
        let expected: Vec<_> = records.iter().map(|(key, fields)| (key.clone(), buffer(fields))).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), opcode in 1..=13u8) {
        // Mostly refused at the opcode otherwise.
        let mut likely = bytes.clone();
        if let Some(byte) = likely.get_mut(4) { *byte = opcode; }
        for body in [&bytes, &likely] {
            if let Ok(request) = WireRequest::decode(body) {
                let mut values = FieldValues::default();
                request.values.copy_to(&mut values);
                let mut frame = Vec::new();
                encode_request(&mut frame, request.id, request.opcode, request.fields, request.number, request.key, Some(&values)).unwrap();
                prop_assert_eq!(&frame[4..], &body[..]);
            }
            if let Ok(reply) = WireReply::decode(body) {
                prop_assert!(reply.text().len() <= 3 * body.len());
                let mut records = FoundRecords::default();
                let _ = reply.copy_records_to(&mut records);
                prop_assert!(records.len() <= body.len());
            }
        }
        let mut frames = FrameBuffer::new();
        while let Ok(true) = frames.receive(&mut &bytes[..0]) {}
        let mut stream = &bytes[..];
        while let Ok(true) = frames.receive(&mut stream) {
            prop_assert!(frames.body().len() <= bytes.len());
        }
    }

    #[test]
    fn frames_arrive_whole_however_the_stream_is_cut(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30_000), 1..6),
        sizes in prop::collection::vec(1..20_000usize, 1..8),
    ) {
        let (mut bytes, mut frame) = (Vec::new(), Vec::new());
        for key in &keys {
            encode_request(&mut frame, 1, WireOpcode::Read, FieldSelection::All, 0, key, None).unwrap();
            bytes.extend_from_slice(&frame);
        }
        let mut stream = Pieces { bytes: &bytes, sizes: sizes.iter().cycle(), interrupt: false };
        let mut frames = FrameBuffer::new();
        for key in &keys {
            prop_assert!(frames.receive(&mut stream).unwrap());
            prop_assert_eq!(WireRequest::decode(frames.body()).unwrap().key, &key[..]);
        }
        prop_assert!(!frames.receive(&mut stream).unwrap());

        let mut cut = &bytes[..bytes.len() - 1];
        let mut frames = FrameBuffer::new();
        for _ in 1..keys.len() {
            prop_assert!(frames.receive(&mut cut).unwrap());
        }
        prop_assert_eq!(frames.receive(&mut cut).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn merging_is_what_a_map_does(old in field_values(), change in field_values()) {
        let encode = |fields: &[(u16, Vec<u8>)]| {
            let mut bytes = Vec::new();
            append_values(&buffer(fields), &mut bytes).unwrap();
            bytes
        };
        let (old_bytes, change_bytes) = (encode(&old), encode(&change));
        let mut merged = Vec::new();
        WireValues::parse(&old_bytes).unwrap()
            .append_merged(&WireValues::parse(&change_bytes).unwrap(), &mut merged).unwrap();
        let merged = WireValues::parse(&merged).unwrap();
        prop_assert!(merged.is_ordered());
        let mut expected = std::collections::BTreeMap::new();
        expected.extend(old.into_iter().chain(change));
        let merged: Vec<_> = merged.iter().map(|(field, value)| (field, value.to_vec())).collect();
        prop_assert_eq!(merged, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn unrepresentable_message_is_refused() {
    let mut frame = Vec::new();
    let mut encode = |key: &[u8], values: &FieldValues| {
        encode_request(&mut frame, 1, WireOpcode::Insert, FieldSelection::All, 0, key, Some(values))
    };
    let mut values = FieldValues::default();
    assert_eq!(encode(&[0; 65_536], &values), Err(FrameError::Key { bytes: 65_536 }));
    values.push(65_536, b"");
    assert_eq!(encode(b"key", &values), Err(FrameError::Field(65_536)));
    values.clear();
    (0..65_536).for_each(|_| values.push(1, b""));
    assert_eq!(encode(b"key", &values), Err(FrameError::FieldCount(65_536)));
    values.clear();
    values.push(0, &vec![0; MAX_FRAME_BYTES]);
    assert!(matches!(encode(b"key", &values), Err(FrameError::TooLong { .. })));
}

#[test]
fn long_error_is_cut_to_frame() {
    let mut frame = Vec::new();
    encode_text_reply(&mut frame, 7, WireStatus::Failed, &"x".repeat(MAX_FRAME_BYTES + 1));
    let reply = WireReply::decode(&frame[4..]).unwrap();
    assert_eq!((reply.id, reply.text().len()), (7, MAX_FRAME_BYTES / 2));
}

#[test]
fn claimed_length_allocates_nothing() {
    let mut frames = FrameBuffer::new();
    let mut stream = &(MAX_FRAME_BYTES as u32 + 1).to_le_bytes()[..];
    assert_eq!(frames.receive(&mut stream).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn whole_records_are_told_from_parts() {
    let whole = |fields: &[(u16, Vec<u8>)], count| {
        let mut bytes = Vec::new();
        append_values(&buffer(fields), &mut bytes).unwrap();
        WireValues::parse(&bytes).unwrap().is_whole_record(count)
    };
    let (a, b) = ((0, b"a".to_vec()), (1, b"b".to_vec()));
    assert!(whole(&[a.clone(), b.clone()], 2));
    assert!(!whole(&[a.clone(), b.clone()], 3));
    assert!(!whole(&[b.clone(), a.clone()], 2));
    assert!(!whole(&[a.clone(), a], 2));
    assert!(!whole(&[b], 1));
}
