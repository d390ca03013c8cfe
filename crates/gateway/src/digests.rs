//! Checksums of what clients send: computed while it passes, compared before anything counts.

use base16ct::lower::encode_string as hex;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, Digest as Crc, checksum_combine};
use openssl::hash::{Hasher, MessageDigest};

use crate::errors::{GatewayError, GatewayResult};
use crate::model::{ChecksumCoverage, ObjectChecksums};

/// A checksum that S3 knows besides MD5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

pub const ALGORITHMS: [ChecksumKind; 5] = [
    ChecksumKind::Crc32,
    ChecksumKind::Crc32c,
    ChecksumKind::Crc64Nvme,
    ChecksumKind::Sha1,
    ChecksumKind::Sha256,
];

impl ChecksumKind {
    /// As headers and documents of S3 name it, in capitals.
    pub fn name(self) -> &'static str {
        match self {
            ChecksumKind::Crc32 => "CRC32",
            ChecksumKind::Crc32c => "CRC32C",
            ChecksumKind::Crc64Nvme => "CRC64NVME",
            ChecksumKind::Sha1 => "SHA1",
            ChecksumKind::Sha256 => "SHA256",
        }
    }

    pub fn from_name(name: &str) -> Option<ChecksumKind> {
        ALGORITHMS.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// `x-amz-checksum-crc32c`
    pub fn header(self) -> String {
        format!("x-amz-checksum-{}", self.name().to_ascii_lowercase())
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            ChecksumKind::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            ChecksumKind::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            ChecksumKind::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            ChecksumKind::Sha1 | ChecksumKind::Sha256 => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            ChecksumKind::Crc32 | ChecksumKind::Crc32c => 4,
            ChecksumKind::Crc64Nvme => 8,
            ChecksumKind::Sha1 => 20,
            ChecksumKind::Sha256 => 32,
        }
    }

    /// Whether this text has the form of such a checksum: base64 of the right number of bytes. A truncated one counts
    /// as well-formed but wrong: Ceph's s3-tests want that.
    pub(crate) fn has_form_of(self, text: &str) -> bool {
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        match STANDARD.decode(text) {
            Ok(bytes) => bytes.len() == self.bytes(),
            Err(_) => !text.len().is_multiple_of(4) && text.bytes().all(is_base64),
        }
    }

    /// Whether the checksum of a whole can be had from those of its parts.
    fn can_be_full(self) -> bool {
        self.crc().is_some()
    }

    /// S3's default where the client names none.
    pub(crate) fn usual_coverage(self) -> ChecksumCoverage {
        match self {
            ChecksumKind::Crc64Nvme => ChecksumCoverage::Full,
            _ => ChecksumCoverage::Composite,
        }
    }
}

impl ObjectChecksums {
    pub(crate) fn get(&self, algorithm: ChecksumKind) -> Option<&String> {
        match algorithm {
            ChecksumKind::Crc32 => self.crc32.as_ref(),
            ChecksumKind::Crc32c => self.crc32c.as_ref(),
            ChecksumKind::Crc64Nvme => self.crc64nvme.as_ref(),
            ChecksumKind::Sha1 => self.sha1.as_ref(),
            ChecksumKind::Sha256 => self.sha256.as_ref(),
        }
    }

    pub(crate) fn set(&mut self, algorithm: ChecksumKind, value: String) {
        let slot = match algorithm {
            ChecksumKind::Crc32 => &mut self.crc32,
            ChecksumKind::Crc32c => &mut self.crc32c,
            ChecksumKind::Crc64Nvme => &mut self.crc64nvme,
            ChecksumKind::Sha1 => &mut self.sha1,
            ChecksumKind::Sha256 => &mut self.sha256,
        };
        *slot = Some(value);
    }
}

enum RunningChecksum {
    Crc(Box<Crc>),
    Hash(Hasher),
}

/// Computes MD5 and the other requested digests in one pass.
pub(crate) struct DigestSet {
    md5: Hasher,
    others: Vec<(ChecksumKind, RunningChecksum)>,
}

/// The computed digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DigestResults {
    pub(crate) md5: [u8; 16],
    pub(crate) checksums: ObjectChecksums,
}

fn hashing(error: impl std::fmt::Display) -> GatewayError {
    GatewayError::local("cannot compute a checksum", error)
}

impl DigestSet {
    pub(crate) fn new(algorithms: &[ChecksumKind]) -> GatewayResult<DigestSet> {
        let mut others = Vec::new();
        for algorithm in algorithms {
            let running = match (algorithm.crc(), algorithm) {
                (Some(crc), _) => RunningChecksum::Crc(Box::new(Crc::new(crc))),
                (None, ChecksumKind::Sha1) => {
                    RunningChecksum::Hash(Hasher::new(MessageDigest::sha1()).map_err(hashing)?)
                }
                (None, _) => RunningChecksum::Hash(Hasher::new(MessageDigest::sha256()).map_err(hashing)?),
            };
            others.push((*algorithm, running));
        }
        Ok(DigestSet { md5: Hasher::new(MessageDigest::md5()).map_err(hashing)?, others })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) -> GatewayResult<()> {
        self.md5.update(bytes).map_err(hashing)?;
        for (_, running) in &mut self.others {
            match running {
                RunningChecksum::Crc(crc) => crc.update(bytes),
                RunningChecksum::Hash(hash) => hash.update(bytes).map_err(hashing)?,
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> GatewayResult<DigestResults> {
        let mut checksums = ObjectChecksums::default();
        for (algorithm, running) in self.others {
            let bytes = match running {
                RunningChecksum::Crc(crc) => crc.finalize().to_be_bytes()[8 - algorithm.bytes()..].to_vec(),
                RunningChecksum::Hash(mut hash) => hash.finish().map_err(hashing)?.to_vec(),
            };
            checksums.set(algorithm, STANDARD.encode(bytes));
            checksums.coverage = Some(ChecksumCoverage::Full);
        }
        let mut md5 = [0; 16];
        md5.copy_from_slice(&self.md5.finish().map_err(hashing)?);
        Ok(DigestResults { md5, checksums })
    }
}

/// The ETag of an object of several parts: the MD5 of their MD5s, and how many they are.
pub(crate) fn multipart_etag<'a>(parts: impl Iterator<Item = &'a str>) -> GatewayResult<String> {
    let mut md5 = Hasher::new(MessageDigest::md5()).map_err(hashing)?;
    let mut count = 0;
    for part in parts {
        // A client may list any text. What is no digit counts as 0, and the ETag is then another one.
        let byte_of = |pair: &[u8]| {
            let mut byte = [0];
            base16ct::mixed::decode(pair, &mut byte)
                .map_or(0, |decoded| decoded.first().copied().unwrap_or(0))
        };
        let bytes: Vec<u8> = part.as_bytes().chunks_exact(2).map(byte_of).collect();
        md5.update(&bytes).map_err(hashing)?;
        count += 1;
    }
    Ok(format!("{}-{count}", hex(&md5.finish().map_err(hashing)?)))
}

/// The checksum of a whole from those of its parts: of all bytes, or of the checksums with a dash and their number.
///
/// # Errors
/// When a part's is not base64 of the right length.
pub(crate) fn combined(
    algorithm: ChecksumKind,
    coverage: ChecksumCoverage,
    parts: &[(&str, u64)],
) -> GatewayResult<String> {
    let mut decoded = Vec::new();
    for (checksum, size_bytes) in parts {
        let bytes = STANDARD.decode(checksum).ok().filter(|bytes| bytes.len() == algorithm.bytes());
        let bytes = bytes
            .ok_or_else(|| GatewayError::InvalidPart(format!("a part's {} is damaged", algorithm.name())))?;
        decoded.push((bytes, *size_bytes));
    }
    match (coverage, algorithm.crc()) {
        (ChecksumCoverage::Full, Some(crc)) => {
            let number =
                |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            let mut parts = decoded.iter();
            let first = parts.next().map_or(0, |(bytes, _)| number(bytes));
            let whole = parts
                .fold(first, |so_far, (bytes, size)| checksum_combine(crc, so_far, number(bytes), *size));
            Ok(STANDARD.encode(&whole.to_be_bytes()[8 - algorithm.bytes()..]))
        }
        (ChecksumCoverage::Full, None) => Err(GatewayError::InvalidArgument(format!(
            "{} of a multipart upload is COMPOSITE only",
            algorithm.name()
        ))),
        (ChecksumCoverage::Composite, _) => {
            let mut digests = DigestSet::new(&[algorithm])?;
            for (bytes, _) in &decoded {
                digests.update(bytes)?;
            }
            let of_parts = digests.finish()?.checksums.get(algorithm).cloned().unwrap_or_default();
            Ok(format!("{of_parts}-{}", parts.len()))
        }
    }
}

/// A checksum that the whole of an upload may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadChecksum {
    algorithm: ChecksumKind,
    coverage: ChecksumCoverage,
}

impl UploadChecksum {
    /// # Errors
    /// When S3 has no such checksum of this coverage.
    pub fn new(algorithm: ChecksumKind, coverage: ChecksumCoverage) -> GatewayResult<UploadChecksum> {
        match coverage {
            ChecksumCoverage::Full if !algorithm.can_be_full() => {
                Err(GatewayError::InvalidArgument(format!(
                    "{} can't be FULL_OBJECT: choose COMPOSITE, or one of CRC32, CRC32C and CRC64NVME",
                    algorithm.name()
                )))
            }
            ChecksumCoverage::Composite if algorithm == ChecksumKind::Crc64Nvme => {
                let reason = "CRC64NVME can't be COMPOSITE: choose FULL_OBJECT";
                Err(GatewayError::InvalidArgument(reason.to_owned()))
            }
            _ => Ok(UploadChecksum { algorithm, coverage }),
        }
    }

    pub(crate) fn algorithm(self) -> ChecksumKind {
        self.algorithm
    }

    pub(crate) fn coverage(self) -> ChecksumCoverage {
        self.coverage
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(algorithm: ChecksumKind, bytes: &[u8]) -> String {
        let mut digests = DigestSet::new(&[algorithm]).unwrap();
        digests.update(bytes).unwrap();
        digests.finish().unwrap().checksums.get(algorithm).unwrap().clone()
    }

    #[test]
    fn published_check_values() {
        // The catalogue of CRCs and FIPS 180 give these for "123456789" and "abc".
        let hexed = |algorithm, text: &str| hex(&STANDARD.decode(of(algorithm, text.as_bytes())).unwrap());
        assert_eq!(hexed(ChecksumKind::Crc32, "123456789"), "cbf43926");
        assert_eq!(hexed(ChecksumKind::Crc32c, "123456789"), "e3069283");
        assert_eq!(hexed(ChecksumKind::Crc64Nvme, "123456789"), "ae8b14860a799888");
        assert_eq!(hexed(ChecksumKind::Sha1, "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hexed(ChecksumKind::Sha256, "abc"), sha256);
        let mut md5 = DigestSet::new(&[]).unwrap();
        md5.update(b"abc").unwrap();
        assert_eq!(hex(&md5.finish().unwrap().md5), "900150983cd24fb0d6963f7d28e17f72");
    }

    proptest! {
        #[test]
        fn combined_checksum_equals_checksum_of_whole(
            bytes in proptest::collection::vec(any::<u8>(), 1..5000),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            for algorithm in [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme] {
                let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
                let sums: Vec<String> = pieces.iter().map(|piece| of(algorithm, piece)).collect();
                let parts: Vec<(&str, u64)> =
                    sums.iter().zip(&pieces).map(|(sum, piece)| (sum.as_str(), piece.len() as u64)).collect();
                prop_assert_eq!(combined(algorithm, ChecksumCoverage::Full, &parts).unwrap(), of(algorithm, &bytes));
            }
        }
    }
}
