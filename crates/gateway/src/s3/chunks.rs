//! Bodies in `aws-chunked`, cut anew. `s3s` gathers a whole chunk before it hands on a byte of it, and a client decides
//! how long a chunk is: 4 GiB if it likes. So what reaches `s3s` comes in pieces of [`PIECE_BYTES`] at most. Unsigned
//! chunks can be cut anywhere. A signed chunk is verified here as it comes, and its pieces are signed with the same
//! key; `s3s` verifies those. A body whose chunks have ordinary lengths passes as it is.

use std::collections::VecDeque;

use base16ct::lower::encode_string as hex;
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::HeaderMap;
use sha2::{Digest as _, Sha256};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::access::KeyPermissions;
use super::spoiled::ChunkError;

/// No piece is longer. Signed chunks up to this length pass as they are: those of most clients have 64 or 128 KiB.
pub(crate) const PIECE_BYTES: usize = 128 << 10;
/// Signed chunks that are shorter are put together: one of a byte would take a hundred bytes of memory.
const SHORT_CHUNK_BYTES: u64 = 8 << 10;
/// Of the size of a chunk, as `s3s` reads it.
const MAX_PASSED_DIGITS: usize = 8;
/// Data that comes at once and is as long as this is handed on without a copy.
const COPIED_BYTES: usize = 32 << 10;
/// Of the line before a chunk.
const MAX_LINE_BYTES: usize = 1024;
const MAX_TRAILER_BYTES: usize = 16 << 10;
const SIGNATURE_BYTES: usize = 64;
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

enum RechunkerState {
    /// Before a chunk.
    Line,
    /// In a chunk, with so many bytes still to come.
    Data(u64),
    /// Behind a chunk's bytes, with so many of the two that end it still to come.
    End(u8),
    /// Behind the last chunk. The trailer passes as it is.
    Trailer,
    /// The same, and it has to be signed anew.
    TrailerAnew,
}

/// The signatures of a body, each of which covers the one before.
struct SignatureChain {
    key: [u8; 32],
    /// The two lines of what is signed that say when and where.
    scope: String,
    /// The last one that came.
    theirs: String,
    /// And the last one that was handed on, once those differ.
    ours: Option<String>,
    /// Of the chunk that is coming: its signature and its bytes so far.
    expected: String,
    hash: Sha256,
}

/// See the module.
pub(crate) struct ChunkDecoder {
    chain: Option<SignatureChain>,
    state: RechunkerState,
    /// The line or the trailer, as far as it has come.
    text: Vec<u8>,
    /// Bytes that are not handed on yet.
    piece: BytesMut,
    /// Whether the chunk that is coming passes as it is.
    passes: bool,
    /// The bytes that the chunks may still bring.
    promised_bytes: u64,
    has_begun: bool,
    ready: VecDeque<Bytes>,
}

impl ChunkDecoder {
    /// For a request whose body `s3s` will take for `aws-chunked`; `None` for any other.
    pub(crate) fn from_headers(headers: &HeaderMap, permissions: &KeyPermissions) -> Option<ChunkDecoder> {
        // `s3s` reads the chunks by itself then.
        if is_planted(PlantedBug::WholeChunkHeld) {
            return None;
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let kind = text("x-amz-content-sha256").filter(|kind| kind.starts_with("STREAMING-"))?;
        let authorization = text("authorization")?;
        let promised = text("x-amz-decoded-content-length").and_then(|length| length.trim().parse().ok());
        let chain = match kind.contains("UNSIGNED") {
            true => None,
            // Without a key that we know, `s3s` reads no byte of the body.
            false => {
                let date = text("x-amz-date").unwrap_or_default();
                Some(
                    SignatureChain::from_authorization(authorization, date, |id| permissions.secret(id))
                        .unwrap_or_default(),
                )
            }
        };
        Some(ChunkDecoder::new(chain, promised.unwrap_or(u64::MAX)))
    }

    fn new(chain: Option<SignatureChain>, promised_bytes: u64) -> ChunkDecoder {
        ChunkDecoder {
            chain,
            state: RechunkerState::Line,
            text: Vec::new(),
            piece: BytesMut::new(),
            passes: false,
            promised_bytes,
            has_begun: false,
            ready: VecDeque::new(),
        }
    }

    /// The next bytes to hand on.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// The next bytes of the body.
    ///
    /// # Errors
    /// When they are no chunks, or not the ones that were signed.
    pub(crate) fn take(&mut self, mut bytes: Bytes) -> Result<(), ChunkError> {
        self.has_begun |= !bytes.is_empty();
        while !bytes.is_empty() {
            match self.state {
                RechunkerState::Line => {
                    let end = bytes.iter().position(|byte| *byte == b'\n').map(|offset| offset + 1);
                    let part = bytes.split_to(end.unwrap_or(bytes.len()));
                    // Before the line has ended: a client that never ends one must not fill the memory.
                    if self.text.len() + part.len() > MAX_LINE_BYTES {
                        return Err(ChunkError::Line);
                    }
                    self.text.extend_from_slice(&part);
                    if end.is_some() {
                        self.begin_chunk()?;
                    }
                }
                RechunkerState::Data(left) => {
                    let length = left.min(bytes.len() as u64);
                    let part = bytes.split_to(length as usize);
                    self.take_data(part);
                    self.state = match left - length {
                        0 => RechunkerState::End(2),
                        left => RechunkerState::Data(left),
                    };
                }
                RechunkerState::End(left) => {
                    if bytes[0] != b"\r\n"[2 - usize::from(left)] {
                        return Err(ChunkError::Length);
                    }
                    drop(bytes.split_to(1));
                    match left {
                        1 => self.end_chunk()?,
                        left => self.state = RechunkerState::End(left - 1),
                    }
                }
                RechunkerState::Trailer => self.ready.push_back(std::mem::take(&mut bytes)),
                // It is signed as a whole, so all of it has to be here first.
                RechunkerState::TrailerAnew => {
                    if self.text.len() + bytes.len() > MAX_TRAILER_BYTES {
                        return Err(ChunkError::LongTrailer);
                    }
                    self.text.extend_from_slice(&std::mem::take(&mut bytes));
                }
            }
        }
        Ok(())
    }

    /// The body has ended.
    ///
    /// # Errors
    /// When it may not end here, or its trailer is not the one that was signed.
    pub(crate) fn end(&mut self) -> Result<(), ChunkError> {
        match self.state {
            RechunkerState::Trailer => Ok(()),
            RechunkerState::TrailerAnew => self.end_trailer(),
            // A body of no bytes at all is the operation's matter.
            _ if !self.has_begun => Ok(()),
            _ => Err(ChunkError::NoEnd),
        }
    }

    fn begin_chunk(&mut self) -> Result<(), ChunkError> {
        let line = std::mem::take(&mut self.text);
        let (size, signature) = parse_line(&line).ok_or(ChunkError::Line)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        self.promised_bytes = self.promised_bytes.checked_sub(size).ok_or(ChunkError::TooLong)?;
        let Some(chain) = &mut self.chain else {
            if signature.is_some() {
                return Err(ChunkError::Line);
            }
            self.state = RechunkerState::Data(size);
            if size == 0 {
                self.hand_on_piece();
                self.ready.push_back(Bytes::from_static(b"0\r\n"));
                self.state = RechunkerState::Trailer;
            }
            return Ok(());
        };
        // Without one it is not what was signed: `s3s` says so, too.
        chain.expected = signature.ok_or(ChunkError::Mismatch)?.to_owned();
        chain.hash = Sha256::new();
        self.passes =
            // `s3s` reads eight digits of a size.
            chain.ours.is_none() && digits <= MAX_PASSED_DIGITS && (size == 0 || (SHORT_CHUNK_BYTES..=PIECE_BYTES as u64).contains(&size));
        if self.passes {
            self.piece.extend_from_slice(&line);
        } else if chain.ours.is_none() {
            chain.ours = Some(chain.theirs.clone());
        }
        match (size, self.passes) {
            (0, true) => {
                self.ready.push_back(self.piece.split().freeze());
                self.state = RechunkerState::Trailer;
            }
            (0, false) => {
                chain.verify()?;
                self.hand_on_piece();
                if let Some(chain) = &mut self.chain {
                    let signature = chain.sign(b"");
                    self.ready.push_back(Bytes::from(format!("0;chunk-signature={signature}\r\n")));
                }
                self.state = RechunkerState::TrailerAnew;
            }
            (size, _) => self.state = RechunkerState::Data(size),
        }
        Ok(())
    }

    fn take_data(&mut self, mut bytes: Bytes) {
        if self.passes {
            self.piece.extend_from_slice(&bytes);
            return;
        }
        if let Some(chain) = &mut self.chain {
            chain.hash.update(&bytes);
        }
        while !bytes.is_empty() {
            if self.piece.is_empty() && bytes.len() >= COPIED_BYTES {
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                self.hand_on(piece);
                continue;
            }
            let room = PIECE_BYTES - self.piece.len();
            let part = bytes.split_to(bytes.len().min(room));
            self.piece.extend_from_slice(&part);
            if self.piece.len() == PIECE_BYTES {
                self.hand_on_piece();
            }
        }
    }

    fn end_chunk(&mut self) -> Result<(), ChunkError> {
        self.state = RechunkerState::Line;
        let Some(chain) = &mut self.chain else { return Ok(()) };
        if self.passes {
            self.piece.extend_from_slice(b"\r\n");
            self.ready.push_back(self.piece.split().freeze());
            chain.theirs = chain.expected.clone();
            return Ok(());
        }
        chain.verify()
    }

    fn hand_on_piece(&mut self) {
        if !self.piece.is_empty() {
            let piece = self.piece.split().freeze();
            self.hand_on(piece);
        }
    }

    /// As a chunk of its own.
    fn hand_on(&mut self, piece: Bytes) {
        let line = match &mut self.chain {
            None => format!("{:x}\r\n", piece.len()),
            Some(chain) => format!("{:x};chunk-signature={}\r\n", piece.len(), chain.sign(&piece)),
        };
        self.ready.extend([Bytes::from(line), piece, Bytes::from_static(b"\r\n")]);
    }

    fn end_trailer(&mut self) -> Result<(), ChunkError> {
        let text = std::mem::take(&mut self.text);
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let (lines, signature) = parse_trailer(&text).ok_or(ChunkError::Line)?;
        // Whether one had to come is the operation's matter, and whether it had to be signed is that of `s3s`.
        let Some(signature) = signature else {
            self.ready.push_back(Bytes::from(text));
            return Ok(());
        };
        let canonical: String = lines.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        if !is_same(&chain.signature("TRAILER", &chain.theirs, &Sha256::digest(&canonical)), &signature) {
            return Err(ChunkError::Mismatch);
        }
        let former = chain.ours.as_deref().unwrap_or(&chain.theirs);
        let signature = chain.signature("TRAILER", former, &Sha256::digest(&canonical));
        let lines: String = lines.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
        self.ready.push_back(Bytes::from(format!("{lines}{TRAILER_SIGNATURE}:{signature}\r\n\r\n")));
        Ok(())
    }
}

impl Default for SignatureChain {
    /// Of nobody: no signature is right.
    fn default() -> SignatureChain {
        SignatureChain {
            key: [0; 32],
            scope: String::new(),
            theirs: String::new(),
            ours: None,
            expected: String::new(),
            hash: Sha256::new(),
        }
    }
}

impl SignatureChain {
    fn from_authorization(
        authorization: &str,
        date: &str,
        secret: impl Fn(&str) -> Option<String>,
    ) -> Option<SignatureChain> {
        let (_, fields) = authorization.trim_start().split_once(char::is_whitespace)?;
        let field = |name: &str| {
            fields.split(',').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
        };
        let mut parts = field("Credential")?.rsplitn(5, '/');
        let (request, service, region, day) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let secret = secret(parts.next()?)?;
        let mut key = hmac(format!("AWS4{secret}").as_bytes(), day);
        for part in [region, service, request] {
            key = hmac(&key, part);
        }
        let scope = format!("{}\n{day}/{region}/{service}/{request}", date.trim());
        Some(SignatureChain {
            key,
            scope,
            theirs: field("Signature")?.to_owned(),
            ..SignatureChain::default()
        })
    }

    fn signature(&self, kind: &str, former: &str, hash: &[u8]) -> String {
        // A chunk could have headers, which none has.
        let headers = match kind {
            "PAYLOAD" => format!("{}\n", hex(&Sha256::digest(b""))),
            _ => String::new(),
        };
        let text = format!("AWS4-HMAC-SHA256-{kind}\n{}\n{former}\n{headers}{}", self.scope, hex(hash));
        hex(&hmac(&self.key, &text))
    }

    /// The chunk that has come, against its signature.
    fn verify(&mut self) -> Result<(), ChunkError> {
        let hash = std::mem::take(&mut self.hash).finalize();
        let signature = self.signature("PAYLOAD", &self.theirs, &hash);
        self.theirs = std::mem::take(&mut self.expected);
        match is_same(&signature, &self.theirs) {
            true => Ok(()),
            false => Err(ChunkError::Mismatch),
        }
    }

    /// The signature of the next piece that is handed on.
    fn sign(&mut self, piece: &[u8]) -> String {
        let former = self.ours.as_deref().unwrap_or(&self.theirs);
        let signature = self.signature("PAYLOAD", former, &Sha256::digest(piece));
        self.ours = Some(signature.clone());
        signature
    }
}

/// How long the comparison takes says nothing of where the signatures differ.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && openssl::memcmp::eq(one.as_bytes(), other.as_bytes())
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    // HMAC takes keys of every length.
    let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    hmac.update(text.as_bytes());
    hmac.finalize().into_bytes().into()
}

/// `1000` or `1000;chunk-signature=...`, with the end of the line.
fn parse_line(line: &[u8]) -> Option<(u64, Option<&str>)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let (size, signature) = match line.split_once(';') {
        None => (line, None),
        Some((size, extension)) => {
            let signature = extension.strip_prefix("chunk-signature=")?;
            (size, Some(signature).filter(|signature| signature.len() == SIGNATURE_BYTES))
        }
    };
    let is_hex = (1..=16).contains(&size.len()) && size.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = u64::from_str_radix(size, 16).ok().filter(|_| is_hex)?;
    (line.contains(';') == signature.is_some()).then_some((size, signature))
}

/// Lines of the trailer in the order that they are signed in, and the signature if there is one.
type TrailerLines = (Vec<(String, String)>, Option<String>);

fn parse_trailer(text: &[u8]) -> Option<TrailerLines> {
    let (mut lines, mut signature) = (Vec::new(), None);
    for line in std::str::from_utf8(text).ok()?.split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':')?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim_ascii().to_owned());
        match name == TRAILER_SIGNATURE {
            true => signature = Some(value),
            false => lines.push((name, value)),
        }
    }
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    Some((lines, signature))
}

/// For the fuzzer: any bytes as a body in chunks, unsigned or signed with nobody's key, in pieces of `step` bytes.
pub(super) fn read_any(data: &[u8], step: usize) {
    let most_bytes = step.max(PIECE_BYTES + MAX_LINE_BYTES + 2);
    for chain in [None, Some(SignatureChain::default())] {
        let mut rechunker = ChunkDecoder::new(chain, u64::MAX);
        let pieces = data.chunks(step.max(1)).map(Bytes::copy_from_slice);
        for piece in pieces {
            if rechunker.take(piece).is_err() {
                break;
            }
            while let Some(bytes) = rechunker.next() {
                assert!(bytes.len() <= most_bytes);
            }
            assert!(rechunker.piece.len() <= most_bytes && rechunker.text.len() <= MAX_TRAILER_BYTES);
        }
        let _ = rechunker.end();
    }
}

#[cfg(test)]
mod tests;
