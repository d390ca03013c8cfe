//! A journal's format on its device, without any I/O.
//!
//! The range is two areas of equal size. An area begins with a header block; the snapshot follows from its
//! second block on, and after that, each at a block's start, the batches. Numbers are little-endian.
//!
//! | header | bytes | | batch | bytes |
//! | --- | --- | --- | --- | --- |
//! | magic | 8 | | magic | 4 |
//! | kind of journal | 8 | | payload length | 4 |
//! | identity | 8 | | identity | 8 |
//! | generation | 8 | | generation | 8 |
//! | snapshot length | 8 | | sequence | 8 |
//! | snapshot CRC-32 | 4 | | records | 4 |
//! | CRC-32 of the above | 4 | | CRC-32 of the above and the payload | 4 |
//!
//! A record in a payload is its length (4 bytes) and its bytes. Generation 0 marks an area that holds nothing.

/// Everything in a journal starts on a multiple of this.
pub const BLOCK_BYTES: u64 = 4096;

const HEADER_MAGIC: &[u8; 8] = b"UNDLYJN1";
const BATCH_MAGIC: &[u8; 4] = b"JBAT";
const HEADER_BYTES: usize = 48;
const BATCH_HEADER_BYTES: usize = 40;
const RECORD_HEADER_BYTES: usize = 4;

/// Eight bytes that name the journal's owner, so that no layer reads another one's records as its own.
pub type JournalKind = [u8; 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaHeader {
    pub kind: JournalKind,
    /// Chosen when the journal is made: what lay on the device before can't be taken for it.
    pub identity: u64,
    /// Counts checkpoints; 0 for an area without content.
    pub generation: u64,
    pub snapshot_bytes: u64,
    pub snapshot_crc: u32,
}

/// A header block as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderBlock {
    /// No header was ever written here.
    Foreign,
    /// It was one.
    Damaged,
    Valid(AreaHeader),
}

/// The content of an area behind its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AreaContent {
    pub snapshot: Vec<u8>,
    pub records: Vec<Vec<u8>>,
    /// Where the next batch goes, from the area's start.
    pub end_bytes: u64,
    /// The number of the next batch.
    pub sequence: u64,
    /// The last batch as it lies there, up to `end_bytes`; empty if there is none.
    pub last_bytes: Vec<u8>,
}

/// Where an area can't be believed, from its start, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaDamage {
    pub offset_bytes: u64,
    pub problem: &'static str,
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(field(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(field(bytes, offset))
}

impl AreaHeader {
    /// A block. Its first 512 bytes, which a power cut doesn't tear, tell old from new.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        block.extend_from_slice(HEADER_MAGIC);
        block.extend_from_slice(&self.kind);
        block.extend_from_slice(&self.identity.to_le_bytes());
        block.extend_from_slice(&self.generation.to_le_bytes());
        block.extend_from_slice(&self.snapshot_bytes.to_le_bytes());
        block.extend_from_slice(&self.snapshot_crc.to_le_bytes());
        block.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    pub fn decode(block: &[u8]) -> HeaderBlock {
        if block.len() < HEADER_BYTES || &block[..8] != HEADER_MAGIC {
            return HeaderBlock::Foreign;
        }
        if crc32fast::hash(&block[..HEADER_BYTES - 4]) != u32_at(block, HEADER_BYTES - 4) {
            return HeaderBlock::Damaged;
        }
        HeaderBlock::Valid(AreaHeader {
            kind: field(block, 8),
            identity: u64_at(block, 16),
            generation: u64_at(block, 24),
            snapshot_bytes: u64_at(block, 32),
            snapshot_crc: u32_at(block, 40),
        })
    }

    /// Where the first batch goes.
    pub fn batches_start(&self) -> u64 {
        BLOCK_BYTES.saturating_add(whole_blocks(self.snapshot_bytes))
    }
}

/// `bytes` rounded up to whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

/// The length of a batch on the device.
pub fn batch_bytes(payload_bytes: u64) -> u64 {
    whole_blocks(BATCH_HEADER_BYTES as u64 + payload_bytes)
}

/// A record's size in a batch's payload.
pub fn record_bytes(length: usize) -> u64 {
    (RECORD_HEADER_BYTES + length) as u64
}

pub fn encode_batch<'a>(
    header: &AreaHeader,
    sequence: u64,
    records: impl Iterator<Item = &'a [u8]>,
    payload_bytes: u64,
) -> Vec<u8> {
    let mut batch = Vec::with_capacity(batch_bytes(payload_bytes) as usize);
    batch.extend_from_slice(BATCH_MAGIC);
    batch.extend_from_slice(&(payload_bytes as u32).to_le_bytes());
    batch.extend_from_slice(&header.identity.to_le_bytes());
    batch.extend_from_slice(&header.generation.to_le_bytes());
    batch.extend_from_slice(&sequence.to_le_bytes());
    batch.extend_from_slice(&[0; 8]);
    let mut count = 0u32;
    for record in records {
        batch.extend_from_slice(&(record.len() as u32).to_le_bytes());
        batch.extend_from_slice(record);
        count += 1;
    }
    debug_assert_eq!(batch.len() as u64, BATCH_HEADER_BYTES as u64 + payload_bytes);
    batch[32..36].copy_from_slice(&count.to_le_bytes());
    let crc = batch_crc(&batch);
    batch[36..40].copy_from_slice(&crc.to_le_bytes());
    batch.resize(batch_bytes(payload_bytes) as usize, 0);
    batch
}

fn batch_crc(batch: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&batch[..36]);
    crc.update(&batch[BATCH_HEADER_BYTES..]);
    crc.finalize()
}

struct RecordBatch {
    sequence: u64,
    records: Vec<Vec<u8>>,
    length_bytes: u64,
}

/// The payload length of the batch that begins with `start`, in `header`'s journal and generation.
fn payload_bytes(header: &AreaHeader, start: &[u8]) -> Option<u64> {
    // Batches of an older generation stay behind the end when an area is used again.
    let is_one = start.len() >= BATCH_HEADER_BYTES
        && &start[..4] == BATCH_MAGIC
        && u64_at(start, 8) == header.identity
        && u64_at(start, 16) == header.generation;
    is_one.then(|| u64::from(u32_at(start, 4)))
}

/// The batch of `header`'s journal and generation at the beginning of `bytes`, if a whole one is there.
fn decode_batch(header: &AreaHeader, bytes: &[u8]) -> Option<RecordBatch> {
    let payload_bytes = payload_bytes(header, bytes)? as usize;
    let whole = bytes.get(..BATCH_HEADER_BYTES.checked_add(payload_bytes)?)?;
    if batch_crc(whole) != u32_at(bytes, 36) {
        return None;
    }
    let mut rest = &whole[BATCH_HEADER_BYTES..];
    let mut records = Vec::new();
    for _ in 0..u32_at(bytes, 32) {
        if rest.len() < RECORD_HEADER_BYTES {
            return None;
        }
        let length = u32_at(rest, 0) as usize;
        let record = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES.checked_add(length)?)?;
        records.push(record.to_vec());
        rest = &rest[RECORD_HEADER_BYTES + length..];
    }
    let length_bytes = batch_bytes(payload_bytes as u64);
    rest.is_empty().then(|| RecordBatch { sequence: u64_at(bytes, 24), records, length_bytes })
}

/// How much of an area is looked at together: areas are far longer than what they hold.
const WINDOW_BYTES: u64 = 4 << 20;

/// An area that is read as it is needed: `read` takes a place and a length in bytes.
struct ReadWindow<R> {
    read: R,
    area_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<E, R: FnMut(u64, u64) -> Result<Vec<u8>, E>> ReadWindow<R> {
    fn new(area_bytes: u64, read: R) -> ReadWindow<R> {
        ReadWindow { read, area_bytes, start: 0, bytes: Vec::new() }
    }

    /// `length` bytes from `offset` on, or as many as the area has.
    fn read_at(&mut self, offset: u64, length: u64) -> Result<&[u8], E> {
        let end = offset.saturating_add(length).min(self.area_bytes);
        if offset >= end {
            return Ok(&[]);
        }
        if offset < self.start || end > self.start + self.bytes.len() as u64 {
            let length = whole_blocks(length.max(WINDOW_BYTES)).min(self.area_bytes - offset);
            // The old bytes go first, so that two windows are never held.
            self.bytes = Vec::new();
            self.bytes = (self.read)(offset, length)?;
            self.start = offset;
        }
        Ok(&self.bytes[(offset - self.start) as usize..(end - self.start) as usize])
    }

    fn batch(&mut self, header: &AreaHeader, offset: u64) -> Result<Option<RecordBatch>, E> {
        let start = self.read_at(offset, BATCH_HEADER_BYTES as u64)?;
        let Some(payload_bytes) = payload_bytes(header, start) else { return Ok(None) };
        let whole = self.read_at(offset, BATCH_HEADER_BYTES as u64 + payload_bytes)?;
        Ok(decode_batch(header, whole))
    }
}

/// Whether any batch of `header`'s journal and generation lies in an area, which `read` reads by place and
/// length.
///
/// # Errors
/// Those of `read`.
pub fn holds_batches<E>(
    header: &AreaHeader,
    area_bytes: u64,
    read: impl FnMut(u64, u64) -> Result<Vec<u8>, E>,
) -> Result<bool, E> {
    let mut window = ReadWindow::new(area_bytes, read);
    for offset in (0..area_bytes).step_by(BLOCK_BYTES as usize) {
        if window.batch(header, offset)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// [`read_area`] of an area in memory.
///
/// # Errors
/// Where and how the area is damaged.
pub fn decode_area(header: &AreaHeader, area: &[u8]) -> Result<AreaContent, AreaDamage> {
    let read = |offset: u64, length: u64| -> Result<Vec<u8>, std::convert::Infallible> {
        Ok(area[offset as usize..][..length as usize].to_vec())
    };
    match read_area(header, area.len() as u64, read) {
        Ok(content) => content,
        Err(never) => match never {},
    }
}

/// Reads the area of this `header`; `read` takes a place in it and a length. It takes no more memory than what the area
/// holds.
///
/// One batch is in flight at a time, and the next one begins only when it is durable. So the first batch that
/// is not whole is the end, torn by a power cut or never written; but a whole one *behind* it proves that the
/// missing one had been durable, and that is damage.
///
/// # Errors
/// Those of `read`; inside, where and how the area is damaged.
pub fn read_area<E>(
    header: &AreaHeader,
    area_bytes: u64,
    read: impl FnMut(u64, u64) -> Result<Vec<u8>, E>,
) -> Result<Result<AreaContent, AreaDamage>, E> {
    let damage = |offset_bytes, problem| Ok(Err(AreaDamage { offset_bytes, problem }));
    let mut window = ReadWindow::new(area_bytes, read);
    let end = BLOCK_BYTES.checked_add(header.snapshot_bytes);
    if end.is_none_or(|end| end > area_bytes) {
        return damage(0, "the header announces a snapshot longer than the area");
    }
    let mut snapshot = match header.snapshot_bytes {
        0 => Vec::new(),
        length => (window.read)(BLOCK_BYTES, whole_blocks(length).min(area_bytes - BLOCK_BYTES))?,
    };
    snapshot.truncate(header.snapshot_bytes as usize);
    if crc32fast::hash(&snapshot) != header.snapshot_crc {
        return damage(BLOCK_BYTES, "the snapshot's checksum is wrong");
    }
    let mut content =
        AreaContent { snapshot, end_bytes: header.batches_start(), sequence: 1, ..AreaContent::default() };
    let mut last = content.end_bytes..content.end_bytes;
    while let Some(batch) = window.batch(header, content.end_bytes)? {
        if batch.sequence != content.sequence {
            return damage(content.end_bytes, "a batch is out of its order");
        }
        content.records.extend(batch.records);
        content.sequence += 1;
        last = content.end_bytes..content.end_bytes + batch.length_bytes;
        content.end_bytes = last.end;
    }
    content.last_bytes = window.read_at(last.start, last.end - last.start)?.to_vec();
    let rest_start = content.end_bytes.saturating_add(BLOCK_BYTES);
    // Nobody knows where a broken batch ends, but each one starts on a block.
    for offset in (rest_start..area_bytes).step_by(BLOCK_BYTES as usize) {
        if window.batch(header, offset)?.is_some_and(|batch| batch.sequence > content.sequence) {
            return damage(content.end_bytes, "a batch is broken, though whole ones were written after it");
        }
    }
    Ok(Ok(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices have such bytes.
    #[test]
    fn checksums_of_header_and_batch_stay() {
        let header =
            AreaHeader { kind: *b"TESTKIND", identity: 1, generation: 2, snapshot_bytes: 3, snapshot_crc: 4 };
        assert_eq!(u32_at(&header.encode(), 44), 0xda8c_c801);
        let batch = encode_batch(&header, 5, [b"abc".as_slice()].into_iter(), record_bytes(3));
        assert_eq!(u32_at(&batch, 36), 0x0ef4_435a);
    }
}
