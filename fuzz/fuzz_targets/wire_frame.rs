//! A child's socket: any bytes are read or refused, and messages are written back the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_systems::wire::{
    FrameBuffer, WireReply, WireRequest, encode_reply, encode_request, set_service_ns,
};
use underlay_workload::client::FieldValues;

fuzz_target!(|bytes: &[u8]| {
    let mut stream = bytes;
    let mut frames = FrameBuffer::new();
    let mut encoded = Vec::new();
    let mut values = FieldValues::default();
    while let Ok(true) = frames.receive(&mut stream) {
        let body = frames.body();
        if let Ok(request) = WireRequest::decode(body) {
            request.values.copy_to(&mut values);
            let WireRequest { id, opcode, fields, number, key, .. } = request;
            encode_request(&mut encoded, id, opcode, fields, number, key, Some(&values)).unwrap();
            assert_eq!(&encoded[4..], body);
        }
        if let Ok(reply) = WireReply::decode(body) {
            let append = |out: &mut Vec<u8>| {
                out.extend_from_slice(reply.values.as_bytes());
                Ok(())
            };
            encode_reply(&mut encoded, reply.id, reply.status, reply.number, append).unwrap();
            set_service_ns(&mut encoded, reply.service_ns);
            assert_eq!(&encoded[4..], body);
            reply.text();
        }
    }
});
