//! The output equals the input, in pieces: signed by the test itself, as a client of the gateway would.

use proptest::prelude::*;

use super::*;

const SEED: &str = "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";
const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=A/KEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";

fn chain() -> SignatureChain {
    let secret = |id: &str| (id == "A/KEY").then(|| "secret".to_owned());
    SignatureChain::from_authorization(AUTHORIZATION, "20260101T000000Z", secret).unwrap()
}

/// These bytes in chunks of these lengths, and a trailer, as a client sends them.
fn framed(bytes: &[u8], lengths: &[usize], is_signed: bool, trailer: &[(&str, &str)]) -> Vec<u8> {
    let (chain, mut former) = (chain(), SEED.to_owned());
    let (mut framed, mut rest) = (Vec::new(), bytes);
    let mut lengths = lengths.iter().copied().chain(std::iter::repeat(usize::MAX));
    loop {
        let (piece, after) = rest.split_at(lengths.next().unwrap().min(rest.len()));
        rest = after;
        framed.extend_from_slice(format!("{:x}", piece.len()).as_bytes());
        if is_signed {
            former = chain.signature("PAYLOAD", &former, &Sha256::digest(piece));
            framed.extend_from_slice(format!(";chunk-signature={former}").as_bytes());
        }
        framed.extend_from_slice(b"\r\n");
        framed.extend_from_slice(piece);
        if piece.is_empty() {
            break;
        }
        framed.extend_from_slice(b"\r\n");
    }
    let canonical: String = trailer.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    for (name, value) in trailer {
        framed.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
    }
    if is_signed && !trailer.is_empty() {
        let signature = chain.signature("TRAILER", &former, &Sha256::digest(&canonical));
        framed.extend_from_slice(format!("{TRAILER_SIGNATURE}:{signature}\r\n").as_bytes());
    }
    framed.extend_from_slice(b"\r\n");
    framed
}

/// Has a body go through in steps of so many bytes.
fn rechunked(is_signed: bool, promised: u64, body: &[u8], step: usize) -> Result<Vec<u8>, ChunkError> {
    let mut rechunker = ChunkDecoder::new(is_signed.then(chain), promised);
    let mut out = Vec::new();
    for piece in body.chunks(step) {
        rechunker.take(Bytes::copy_from_slice(piece))?;
        while let Some(bytes) = rechunker.next() {
            out.extend_from_slice(&bytes);
        }
    }
    rechunker.end()?;
    while let Some(bytes) = rechunker.next() {
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// Reads what came out as `s3s` does, and verifies every signature. Returns the bytes, the longest chunk, and the
/// trailer.
fn read(mut out: &[u8], is_signed: bool) -> (Vec<u8>, usize, Vec<(String, String)>) {
    let (chain, mut former) = (chain(), SEED.to_owned());
    let (mut bytes, mut longest) = (Vec::new(), 0);
    loop {
        let end = out.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let (size, signature) = parse_line(&out[..end]).unwrap();
        let size = size as usize;
        out = &out[end..];
        if is_signed {
            former = chain.signature("PAYLOAD", &former, &Sha256::digest(&out[..size]));
            assert_eq!(signature, Some(former.as_str()));
        }
        if size == 0 {
            break;
        }
        bytes.extend_from_slice(&out[..size]);
        longest = longest.max(size);
        assert_eq!(&out[size..size + 2], b"\r\n");
        out = &out[size + 2..];
    }
    let (lines, signature) = parse_trailer(out).unwrap();
    if is_signed && !lines.is_empty() {
        let canonical: String = lines.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        assert_eq!(signature, Some(chain.signature("TRAILER", &former, &Sha256::digest(&canonical))));
    }
    (bytes, longest, lines)
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

const TRAILER: [(&str, &str); 2] = [("x-amz-checksum-crc32c", "AAAAAA=="), ("x-other", "b")];

#[test]
fn single_chunk_of_any_length_is_split() {
    let bytes = content(3 << 20);
    for is_signed in [false, true] {
        for trailer in [&TRAILER[..], &[]] {
            let body = framed(&bytes, &[bytes.len()], is_signed, trailer);
            for step in [1 << 20, 40_000, 1000] {
                let out = rechunked(is_signed, bytes.len() as u64, &body, step).unwrap();
                let (read, longest, lines) = read(&out, is_signed);
                assert!(read == bytes && longest <= PIECE_BYTES, "{longest}");
                let lines: Vec<(&str, &str)> =
                    lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                assert_eq!(lines, trailer);
            }
        }
    }
}

#[test]
fn signed_chunks_of_ordinary_length_pass_as_they_are() {
    let bytes = content(300_000);
    for length in [SHORT_CHUNK_BYTES as usize, 64 << 10, PIECE_BYTES] {
        let whole = &bytes[..bytes.len() / length * length];
        let body = framed(whole, &vec![length; bytes.len() / length], true, &TRAILER);
        for step in [1 << 20, 1000] {
            assert!(rechunked(true, whole.len() as u64, &body, step).unwrap() == body, "{length}");
        }
    }
}

#[test]
fn chunks_of_a_byte_come_out_together() {
    let bytes = content(5000);
    for is_signed in [false, true] {
        let body = framed(&bytes, &vec![1; bytes.len()], is_signed, &TRAILER);
        let out = rechunked(is_signed, 5000, &body, 777).unwrap();
        assert_eq!(read(&out, is_signed).1, 5000);
    }
}

#[test]
fn long_chunk_with_wrong_signature_is_refused() {
    let bytes = content(1 << 20);
    let body = framed(&bytes, &[400_000, 70_000], true, &TRAILER);
    assert!(rechunked(true, 1 << 20, &body, 5000).is_ok());
    let line = 5 + 17 + SIGNATURE_BYTES + 2;
    let second = line + 400_000 + 2;
    // Bytes of both chunks, signatures of both, and of the trailer.
    let places = [line + 399_999, second + 200, 40, second + 40, body.len() - 20];
    for place in places {
        let mut other = body.clone();
        other[place] ^= 1;
        let refused = rechunked(true, 1 << 20, &other, 5000).unwrap_err();
        assert!(matches!(refused, ChunkError::Mismatch | ChunkError::Line), "{place}: {refused}");
    }
    let other = SignatureChain { key: [1; 32], ..chain() };
    let mut rechunker = ChunkDecoder::new(Some(other), u64::MAX);
    assert_eq!(rechunker.take(Bytes::from(body)), Err(ChunkError::Mismatch));
}

#[test]
fn chunk_length_with_many_digits_is_parsed_or_refused() {
    for (line, size) in [
        ("100000000\r\n", Some(1 << 32)),
        ("0000000000000010\r\n", Some(16)),
        ("ffffffffffffffff\r\n", Some(u64::MAX)),
        ("00000000000000010\r\n", None),
        ("+10\r\n", None),
        ("0x10\r\n", None),
        ("\r\n", None),
        ("10\n", None),
        ("10;\r\n", None),
        ("10;chunk-signature=1\r\n", None),
        ("10;other=1\r\n", None),
    ] {
        assert_eq!(parse_line(line.as_bytes()).map(|(size, _)| size), size, "{line:?}");
    }
    assert_eq!(rechunked(false, 10, b"f0000000\r\n0123456789", 100), Err(ChunkError::TooLong));
    assert_eq!(
        rechunked(false, 10, b"8\r\n01234567\r\n8\r\n01234567\r\n0\r\n\r\n", 100),
        Err(ChunkError::TooLong)
    );
}

#[test]
fn truncated_or_overlong_body_is_refused() {
    for (body, expected) in [
        ("4\r\n0123\r\n", ChunkError::NoEnd),
        ("4\r\n01", ChunkError::NoEnd),
        ("4\r\n0123", ChunkError::NoEnd),
        ("4", ChunkError::NoEnd),
        ("4\r\n01234\r\n0\r\n\r\n", ChunkError::Length),
        ("4\r\n0123\n0\r\n\r\n", ChunkError::Length),
        ("four\r\n0123\r\n0\r\n\r\n", ChunkError::Line),
    ] {
        for step in [1, 100] {
            assert_eq!(rechunked(false, 100, body.as_bytes(), step), Err(expected), "{body:?}");
        }
    }
    assert_eq!(rechunked(false, 100, &[b'1'; 3000], 100), Err(ChunkError::Line));
    assert!(rechunked(false, 0, b"", 1).is_ok());
}

proptest! {
    #[test]
    fn any_chunks_come_out_with_the_same_bytes(
        lengths in prop::collection::vec(1..300_000_usize, 0..6),
        length in 0..600_000_usize,
        step in 1..200_000_usize,
        is_signed in any::<bool>(),
    ) {
        let bytes = content(length);
        let body = framed(&bytes, &lengths, is_signed, &TRAILER);
        let out = rechunked(is_signed, length as u64, &body, step.max(50)).unwrap();
        let (read, longest, lines) = read(&out, is_signed);
        prop_assert!(read == bytes && longest <= PIECE_BYTES && lines.len() == 2);
    }

    #[test]
    fn arbitrary_chunk_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..400), step in 1..400_usize) {
        super::read_any(&data, step);
    }
}
