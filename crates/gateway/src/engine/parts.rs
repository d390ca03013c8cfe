//! Parts of multipart uploads: whether they are what the client lists, and what they make together.

use std::ops::Range;

use crate::digests::{ALGORITHMS, ChecksumKind, combined};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::MetadataView;
use crate::model::{ContentExtent, ObjectChecksums, PartRecord, UploadRecord};
use crate::store::bare;

/// S3's limit, for every part but the last.
const MIN_PART_BYTES: u64 = 5 << 20;
/// A part that is copied may take so many over from its source, and more if they are long: else parts of parts of
/// objects would become lists without end.
const FEW_EXTENTS: usize = 64;
const SHORT_EXTENT_BYTES: u64 = 1 << 20;

/// A part as the client lists it in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedPart {
    pub number: u16,
    pub etag: String,
    pub checksums: ObjectChecksums,
}

pub(super) fn listed_parts(
    view: &MetadataView,
    upload: &str,
    parts: &[CompletedPart],
) -> GatewayResult<Vec<(u16, PartRecord)>> {
    if parts.is_empty() {
        return Err(GatewayError::InvalidPart(
            "a multipart upload is completed with one part at least".to_owned(),
        ));
    }
    if parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        return Err(GatewayError::InvalidPartOrder);
    }
    let mut found = Vec::with_capacity(parts.len());
    for (index, listed) in parts.iter().enumerate() {
        let number = listed.number;
        let part = view
            .part(upload, number)?
            .ok_or_else(|| GatewayError::InvalidPart(format!("part {number} was not uploaded")))?;
        if bare(&listed.etag) != part.etag {
            return Err(GatewayError::InvalidPart(format!(
                "part {number} has another ETag than the request says"
            )));
        }
        // The request need not repeat the checksums of a part. Those that it has must be right.
        for algorithm in ALGORITHMS {
            let Some(wanted) = listed.checksums.get(algorithm) else { continue };
            let reason = match part.checksums.get(algorithm) {
                Some(found) if found == wanted => continue,
                Some(_) => format!("part {number} has another {} than the request says", algorithm.name()),
                None => format!(
                    "part {number} was not uploaded with a {}, and the request has one for it",
                    algorithm.name()
                ),
            };
            return Err(GatewayError::InvalidPart(reason));
        }
        if part.size_bytes < MIN_PART_BYTES && index + 1 < parts.len() {
            return Err(GatewayError::PartTooSmall(number));
        }
        found.push((number, part));
    }
    Ok(found)
}

/// Whether a part is still the one that was looked at, and was not uploaded again since.
///
/// # Errors
/// `InvalidPart` if it is not, and `Busy` if only its bytes are elsewhere by now.
pub(super) fn check_same(number: u16, now: Option<&PartRecord>, before: &PartRecord) -> GatewayResult<()> {
    match now {
        Some(now) if now == before => Ok(()),
        Some(now) if is_elsewhere(now, before) => {
            Err(GatewayError::Busy("the gateway is moving bytes of these parts: try again".to_owned()))
        }
        _ => Err(GatewayError::InvalidPart(format!("part {number} was replaced meanwhile"))),
    }
}

/// Whether it is the same part, and its bytes are elsewhere by now.
fn is_elsewhere(now: &PartRecord, before: &PartRecord) -> bool {
    now.extents != before.extents && PartRecord { extents: before.extents.clone(), ..now.clone() } == *before
}

/// The checksum of the whole, if the upload was begun with one and every part has it. Expected checksums have to be
/// compared.
pub(super) fn whole_checksums(
    begun: &UploadRecord,
    parts: &[(u16, PartRecord)],
    expected: &ObjectChecksums,
) -> GatewayResult<ObjectChecksums> {
    let checksums = combined_checksums(begun, parts)?;
    for algorithm in ALGORITHMS {
        let Some(wanted) = expected.get(algorithm) else { continue };
        let name = algorithm.name();
        match checksums.get(algorithm) {
            Some(whole) if is_same_checksum(whole, wanted, parts.len()) => {}
            Some(whole) => {
                return Err(GatewayError::BadDigest(format!(
                    "the object's {name} is {whole}, and the request says {wanted}"
                )));
            }
            None => {
                return Err(GatewayError::InvalidArgument(format!(
                    "the request has a {name} of the whole object, which can't be compared: the upload was not begun with it, \
                     or a part that was copied has none"
                )));
            }
        }
    }
    Ok(checksums)
}

/// Some clients leave out the number of parts at the end of a composite checksum. The digest before it says as much.
fn is_same_checksum(whole: &str, wanted: &str, parts: usize) -> bool {
    whole == wanted || whole.strip_suffix(&format!("-{parts}")) == Some(wanted)
}

fn combined_checksums(begun: &UploadRecord, parts: &[(u16, PartRecord)]) -> GatewayResult<ObjectChecksums> {
    let mut checksums = ObjectChecksums::default();
    let Some(algorithm) = begun.checksum_algorithm.as_deref().and_then(ChecksumKind::from_name) else {
        return Ok(checksums);
    };
    let coverage = begun.coverage.unwrap_or_else(|| algorithm.usual_coverage());
    let of_parts: Vec<(&str, u64)> = parts
        .iter()
        .filter_map(|(_, part)| Some((part.checksums.get(algorithm)?.as_str(), part.size_bytes)))
        .collect();
    if of_parts.len() != parts.len() {
        return Ok(checksums);
    }
    checksums.set(algorithm, combined(algorithm, coverage, &of_parts)?);
    checksums.coverage = Some(coverage);
    Ok(checksums)
}

/// The parts' checksums for GetObjectAttributes; nothing if the upload was begun without a checksum.
pub(super) fn checksums_of_parts(begun: &UploadRecord, parts: &[(u16, PartRecord)]) -> Vec<String> {
    let Some(algorithm) = begun.checksum_algorithm.as_deref().and_then(ChecksumKind::from_name) else {
        return Vec::new();
    };
    parts.iter().map(|(_, part)| part.checksums.get(algorithm).cloned().unwrap_or_default()).collect()
}

/// Whether a range is in so many short pieces that it is better copied than referred to.
pub(super) fn is_splintered(extents: &[ContentExtent], range: &Range<u64>) -> bool {
    let pieces = slice(extents, range).len();
    pieces > FEW_EXTENTS && (range.end - range.start) / (pieces as u64) < SHORT_EXTENT_BYTES
}

/// The extents of a range.
pub(super) fn slice(extents: &[ContentExtent], range: &Range<u64>) -> Vec<ContentExtent> {
    let mut sliced = Vec::new();
    let mut begin = 0;
    for extent in extents {
        let (from, to) = (range.start.max(begin), range.end.min(begin + extent.length_bytes));
        if from < to {
            sliced.push(ContentExtent {
                content: extent.content,
                offset_bytes: extent.offset_bytes + (from - begin),
                length_bytes: to - from,
            });
        }
        begin += extent.length_bytes;
    }
    sliced
}

/// Neighbours within one content become one extent: parts copied from one object make that object's list again.
pub(super) fn joined(extents: impl Iterator<Item = ContentExtent>) -> Vec<ContentExtent> {
    let mut list: Vec<ContentExtent> = Vec::new();
    for extent in extents {
        match list.last_mut() {
            Some(last)
                if last.content == extent.content
                    && last.offset_bytes + last.length_bytes == extent.offset_bytes =>
            {
                last.length_bytes += extent.length_bytes;
            }
            _ => list.push(extent),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ChecksumCoverage, ContentId, ObjectHeaders};

    fn extent(content: u64, offset_bytes: u64, length_bytes: u64) -> ContentExtent {
        ContentExtent { content: ContentId(content), offset_bytes, length_bytes }
    }

    #[test]
    fn extent_ranges_are_cut_and_joined() {
        let extents = [extent(1, 10, 100), extent(2, 0, 50)];
        assert_eq!(slice(&extents, &(0..150)), extents);
        assert_eq!(slice(&extents, &(90..120)), [extent(1, 100, 10), extent(2, 0, 20)]);
        assert_eq!(slice(&extents, &(5..5)), []);
        let parts = [slice(&extents, &(0..40)), slice(&extents, &(40..130)), slice(&extents, &(130..150))];
        assert_eq!(joined(parts.into_iter().flatten()), extents);
    }

    #[test]
    fn only_many_short_pieces_are_splinters() {
        let has_splinters = |count: u64, length_bytes: u64| {
            let extents: Vec<ContentExtent> = (0..count).map(|id| extent(id, 0, length_bytes)).collect();
            is_splintered(&extents, &(0..count * length_bytes))
        };
        assert!(
            !has_splinters(64, 1)
                && has_splinters(65, 1)
                && has_splinters(65, SHORT_EXTENT_BYTES - 1)
                && !has_splinters(1000, SHORT_EXTENT_BYTES)
        );
        // Extents outside the range do not count.
        let extents: Vec<ContentExtent> = (0..1000).map(|id| extent(id, 0, 1)).collect();
        assert!(!is_splintered(&extents, &(10..50)) && is_splintered(&extents, &(10..500)));
    }

    #[test]
    fn part_with_moved_bytes_is_busy_and_replaced_invalid() {
        let before = PartRecord {
            size_bytes: 10,
            etag: "e".to_owned(),
            modified_ms: 1,
            extents: vec![extent(1, 0, 10)],
            checksums: ObjectChecksums::default(),
        };
        assert_eq!(check_same(1, Some(&before.clone()), &before), Ok(()));
        let moved = PartRecord { extents: vec![extent(2, 5, 10)], ..before.clone() };
        assert!(matches!(check_same(1, Some(&moved), &before), Err(GatewayError::Busy(_))));
        let replaced = PartRecord { modified_ms: 2, ..moved };
        for now in [Some(&replaced), None] {
            assert!(matches!(check_same(1, now, &before), Err(GatewayError::InvalidPart(_))));
        }
    }

    #[test]
    fn incomparable_checksum_is_refused() {
        let part = |sum: Option<&str>| {
            let mut checksums = ObjectChecksums::default();
            if let Some(sum) = sum {
                checksums.set(ChecksumKind::Crc32, sum.to_owned());
            }
            PartRecord { size_bytes: 1, etag: String::new(), modified_ms: 0, extents: Vec::new(), checksums }
        };
        let begun = |algorithm: Option<&str>| UploadRecord {
            begun_ms: 0,
            headers: ObjectHeaders::default(),
            tags: Vec::new(),
            checksum_algorithm: algorithm.map(str::to_owned),
            coverage: Some(ChecksumCoverage::Composite),
        };
        let ours = begun(Some(ChecksumKind::Crc32.name()));
        let parts = [(1, part(Some("6Ufuxg=="))), (2, part(Some("6Ufuxg==")))];
        let whole = whole_checksums(&ours, &parts, &ObjectChecksums::default()).unwrap();
        let expected = whole.get(ChecksumKind::Crc32).unwrap().clone();
        let wanting = |algorithm, text: &str| {
            let mut wanted = ObjectChecksums::default();
            wanted.set(algorithm, text.to_owned());
            wanted
        };
        let right = wanting(ChecksumKind::Crc32, &expected);
        assert!(whole_checksums(&ours, &parts, &right).is_ok());
        let refused = |begun: &UploadRecord, parts: &[(u16, PartRecord)], expected: &ObjectChecksums| {
            whole_checksums(begun, parts, expected).unwrap_err()
        };
        let wrong = wanting(ChecksumKind::Crc32, "AAAAAA==-2");
        assert!(matches!(refused(&ours, &parts, &wrong), GatewayError::BadDigest(_)));
        // Begun without, with another one, and with a part that has none.
        assert!(matches!(refused(&begun(None), &parts, &right), GatewayError::InvalidArgument(_)));
        let other = wanting(ChecksumKind::Sha256, "AAAA");
        assert!(matches!(refused(&ours, &parts, &other), GatewayError::InvalidArgument(_)));
        let copied = [(1, part(Some("6Ufuxg=="))), (2, part(None))];
        assert!(matches!(refused(&ours, &copied, &right), GatewayError::InvalidArgument(_)));
    }
}
