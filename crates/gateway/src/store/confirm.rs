//! Whether the store has done what it says. Its word alone frees no byte of the journal: it is asked what it has, and
//! that is held against what it was sent.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use base16ct::lower::encode_string as hex;
use futures_util::StreamExt as _;
use object_store::GetOptions;
use object_store::path::Path;
use openssl::hash::{Hasher, MessageDigest};

use super::late::may_land;
use super::names::{EMPTY, NO_KEY, is_marker};
use super::{BackendKind, MayGoOn, PART_BYTES, StoreBackend, StoredInfo, failed, found, part_bytes};
use crate::digests::multipart_etag;
use crate::errors::{GatewayError, GatewayResult};
use crate::model::now_ms;

/// Some stores show a little later what was written. To ask again costs less than to send an object again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// One that does not answer at all is not asked again behind this: the flush has another turn.
const ASKED_FOR: Duration = Duration::from_secs(10);

/// The ETag that S3 makes of bytes, which pass by: their MD5, or that of their parts' MD5s.
pub(crate) struct EtagFingerprint {
    /// `None` where one request takes the whole.
    part_bytes: Option<u64>,
    part: Hasher,
    in_part: u64,
    sums: Vec<String>,
}

fn hashing(error: impl std::fmt::Display) -> GatewayError {
    GatewayError::local("cannot compute a checksum", error)
}

impl EtagFingerprint {
    /// Of an object of this size, as [`StoreBackend::put`] would send it.
    pub(crate) fn new(size_bytes: u64) -> GatewayResult<EtagFingerprint> {
        Ok(EtagFingerprint {
            part_bytes: (size_bytes > PART_BYTES).then(|| part_bytes(size_bytes)),
            part: Hasher::new(MessageDigest::md5()).map_err(hashing)?,
            in_part: 0,
            sums: Vec::new(),
        })
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) -> GatewayResult<()> {
        while let Some(part_bytes) = self.part_bytes
            && self.in_part + bytes.len() as u64 >= part_bytes
        {
            let (end, rest) = bytes.split_at((part_bytes - self.in_part) as usize);
            self.part.update(end).map_err(hashing)?;
            self.end_part()?;
            bytes = rest;
        }
        self.in_part += bytes.len() as u64;
        self.part.update(bytes).map_err(hashing)
    }

    fn end_part(&mut self) -> GatewayResult<()> {
        self.in_part = 0;
        self.sums.push(hex(&self.part.finish().map_err(hashing)?));
        Ok(())
    }

    pub(crate) fn etag(mut self) -> GatewayResult<String> {
        if self.part_bytes.is_none() {
            return Ok(hex(&self.part.finish().map_err(hashing)?));
        }
        if self.in_part > 0 {
            self.end_part()?;
        }
        multipart_etag(self.sums.iter().map(String::as_str))
    }
}

/// The kind of a store's ETags: where it encrypts with its own keys they look like MD5s and are none.
#[derive(Debug, Default)]
pub(super) struct StoreEtags {
    whole: AtomicU8,
    in_parts: AtomicU8,
}

const UNKNOWN: u8 = 0;
/// They are what S3 makes of the bytes.
const OF_BYTES: u8 = 1;
/// They are not, as the bytes themselves have shown.
const OF_ITS_OWN: u8 = 2;

impl StoreEtags {
    fn kind_for(&self, etag: &str) -> &AtomicU8 {
        if etag.contains('-') { &self.in_parts } else { &self.whole }
    }
}

/// Whether it is written as an MD5, which does not say that it is one.
fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether an ETag of the store is written as S3 writes one of the bytes that `made` was made of.
fn is_like(etag: &str, made: &str) -> bool {
    let (sum, of_made) = (etag.get(..32).unwrap_or(""), made.get(32..));
    is_md5(sum) && etag.get(32..) == of_made
}

fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if bare(one).eq_ignore_ascii_case(bare(other)))
}

fn described(found: &StoredInfo) -> String {
    let etag = found.etag.as_deref().map_or("no ETag", bare);
    format!("has {} bytes there, with {etag}", found.size_bytes)
}

impl StoreBackend {
    /// Asks what the store has at a key until it is `as_wanted`, a few times. The error begins with `claim` it said.
    async fn ask_until(
        &self,
        key: &str,
        claim: &str,
        as_wanted: impl Fn(&GatewayResult<StoredInfo>) -> bool,
    ) -> GatewayResult<GatewayResult<StoredInfo>> {
        let (mut pauses, begun) = (PAUSES.iter(), tokio::time::Instant::now());
        loop {
            let found = self.look(key).await;
            if as_wanted(&found) {
                return Ok(found);
            }
            let pause = match &found {
                Err(error) if *error != GatewayError::NoSuchKey && begun.elapsed() > ASKED_FOR => None,
                _ => pauses.next(),
            };
            let Some(pause) = pause else {
                let reason = match found {
                    Ok(found) => described(&found),
                    Err(GatewayError::NoSuchKey) => "has nothing there".to_owned(),
                    Err(error) => format!("does not list its objects ({error})"),
                };
                return Err(GatewayError::Store(format!("the store said that it {claim}, and {reason}")));
            };
            tokio::time::sleep(*pause).await;
        }
    }

    /// Confirms what the store has at this key after it answered a write with this ETag: an object of that size and
    /// ETag. As far as the store's ETags depend on bytes, they must be those that were sent. `made` is S3's ETag for
    /// them.
    ///
    /// # Errors
    /// When it has not, or does not say.
    pub(crate) async fn confirm(
        &self,
        key: &str,
        size_bytes: u64,
        answered: Option<String>,
        made: Option<&str>,
    ) -> GatewayResult<StoredInfo> {
        let is_it = |found: &StoredInfo| {
            let is_known = answered.is_some() && found.etag.is_some();
            found.size_bytes == size_bytes
                && (!is_known || is_same(answered.as_deref(), found.etag.as_deref()))
        };
        let claim = format!("has stored {}", key.escape_debug());
        let found = match self.ask_until(key, &claim, |found| found.as_ref().is_ok_and(is_it)).await {
            Ok(found) => found?,
            Err(error) => {
                self.under_another_etag(key, size_bytes, answered.as_deref(), made).await?.ok_or(error)?
            }
        };
        let found = StoredInfo { etag: found.etag.or(answered), ..found };
        if let (Some(made), Some(etag)) = (made, found.etag.as_deref().map(bare))
            && self.kind == BackendKind::S3
            && is_like(etag, made)
        {
            let etags = self.etags.kind_for(made);
            if etag.eq_ignore_ascii_case(made) {
                etags.store(OF_BYTES, Ordering::Relaxed);
            } else if etags.load(Ordering::Relaxed) != OF_ITS_OWN {
                // Either the bytes are others, or the ETag is none of bytes: reading them is the only way to know.
                if self.fingerprint(key, &found).await? != made {
                    let claim = format!("the store said that it has stored {}", key.escape_debug());
                    return Err(GatewayError::Store(format!("{claim}, and has other bytes there")));
                }
                self.has_etags_of_its_own(etags);
            }
        }
        Ok(found)
    }

    /// The store's object if only the ETag differs from its answer: some stores change an object's ETag a moment later,
    /// and some file systems a file's time when it is closed. The store is asked until something shows that it is the
    /// same: in S3 its bytes, in a directory its inode.
    async fn under_another_etag(
        &self,
        key: &str,
        size_bytes: u64,
        answered: Option<&str>,
        made: Option<&str>,
    ) -> GatewayResult<Option<StoredInfo>> {
        let found = match self.look(key).await {
            Ok(found) if found.size_bytes == size_bytes => found,
            _ => return Ok(None),
        };
        let is_it = match (self.kind, made) {
            (BackendKind::Directory, _) => {
                let inode = |etag: Option<&str>| Some(bare(etag?).split_once('-')?.0.to_owned());
                inode(answered).is_some() && inode(answered) == inode(found.etag.as_deref())
            }
            (BackendKind::S3, Some(made)) => self.fingerprint(key, &found).await? == made,
            (BackendKind::S3, None) => false,
        };
        if is_it {
            tracing::info!(
                "the store answered with one ETag and has another for the same bytes: {}",
                key.escape_debug()
            );
        }
        Ok(is_it.then_some(found))
    }

    fn has_etags_of_its_own(&self, etags: &AtomicU8) {
        // One that has given right ones before is read from each time.
        if etags.compare_exchange(UNKNOWN, OF_ITS_OWN, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::info!(
                "the store's ETags are not MD5s of its bytes, as with encryption: the gateway compares sizes and unchanged ETags alone"
            );
        }
    }

    /// S3's ETag for the bytes that the store has.
    async fn fingerprint(&self, key: &str, found: &StoredInfo) -> GatewayResult<String> {
        let mut fingerprint = EtagFingerprint::new(found.size_bytes)?;
        let mut offset = 0;
        while offset < found.size_bytes {
            let end = (offset + PART_BYTES).min(found.size_bytes);
            let (_, mut body) = self.get(key, found.etag.as_deref(), found.size_bytes, offset..end).await?;
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|error| failed("GET", error))?;
                offset += piece.len() as u64;
                fingerprint.update(&piece)?;
            }
            if offset != end {
                let key = key.escape_debug();
                return Err(GatewayError::Store(format!("{key} is shorter or longer than the store said")));
            }
        }
        fingerprint.etag()
    }

    /// Has the store copy an object of this size and ETag, whose bytes have the ETag `made` here, and looks whether it
    /// has. Nothing is begun once `may_go_on` says no.
    ///
    /// # Errors
    /// When the copy is not there, or may be one of something else.
    pub(crate) async fn copy_confirmed(
        &self,
        (from, etag): (&str, Option<&str>),
        to: &str,
        (size_bytes, made): (u64, &str),
        may_go_on: &MayGoOn<'_>,
    ) -> GatewayResult<StoredInfo> {
        let is_s3 = self.kind == BackendKind::S3;
        let is_plain = is_s3 && etag.is_some_and(|etag| is_md5(bare(etag)));
        let whole = self.etags.whole.load(Ordering::Relaxed);
        // Where the copy's ETag does not say what it is a copy of, it has to be another object than is there now, or of
        // the same bytes.
        let before = match is_s3 && !(is_plain && whole == OF_BYTES) {
            false => None,
            true => match self.look(to).await {
                Err(GatewayError::NoSuchKey) => None,
                outcome => Some(outcome?),
            },
        };
        self.copy_object(from, to, may_go_on).await?;
        if may_land() {
            // Once it counts, the source may be overwritten, and a copy that is carried out after that would be one of
            // other bytes.
            return Err(GatewayError::Store(
                "a request to copy got no answer and may still be carried out: it is copied again once that is over".to_owned(),
            ));
        }
        let is_of_source = |found: &StoredInfo| {
            let found = found.etag.as_deref();
            is_same(found, etag) || (is_s3 && is_same(found, Some(made)))
        };
        // In a directory a copy is another name of the same file, so its ETag is the source's.
        let may_be = |found: &StoredInfo| is_s3 || etag.is_none() || found.etag.is_none();
        let is_it =
            |found: &StoredInfo| found.size_bytes == size_bytes && (is_of_source(found) || may_be(found));
        let claim = format!("has copied {} to {}", from.escape_debug(), to.escape_debug());
        let found = self.ask_until(to, &claim, |found| found.as_ref().is_ok_and(is_it)).await??;
        if !is_s3 {
            // Its time is the file's, which may be older than what was there before.
            return Ok(StoredInfo { modified_ms: found.modified_ms.max(now_ms()), ..found });
        }
        if is_of_source(&found) {
            return Ok(found);
        }
        let other =
            |reason: &str| GatewayError::Store(format!("the store said that it {claim}, and {reason}"));
        let is_as_before = before.as_ref().is_some_and(|before| {
            is_same(before.etag.as_deref(), found.etag.as_deref()) && before.modified_ms == found.modified_ms
        });
        // A copy of the same bytes may have been there before, or nothing may have been copied.
        if (is_plain && whole != OF_ITS_OWN) || is_as_before {
            let source = StoredInfo { etag: etag.map(str::to_owned), ..found.clone() };
            if self.fingerprint(from, &source).await? != self.fingerprint(to, &found).await? {
                return Err(other("has other bytes there"));
            }
            if is_plain && found.etag.as_deref().is_some_and(|etag| is_md5(bare(etag))) {
                self.has_etags_of_its_own(&self.etags.whole);
            }
            return Ok(found);
        }
        // It has copied what was there at that moment.
        let source = self.head(from).await?;
        if source.size_bytes != size_bytes || (etag.is_some() && !is_same(source.etag.as_deref(), etag)) {
            return Err(other("the source is another one by now"));
        }
        Ok(found)
    }

    /// That the store has nothing at this key, which it said it has deleted.
    ///
    /// # Errors
    /// When it has, or does not say.
    pub(crate) async fn confirm_gone(&self, key: &str) -> GatewayResult<()> {
        let claim = format!("has deleted {}", key.escape_debug());
        let is_gone = |found: &GatewayResult<StoredInfo>| matches!(found, Err(GatewayError::NoSuchKey));
        self.ask_until(key, &claim, is_gone).await.map(drop)
    }

    /// The store's object at a key. Where it denies to say so, that is no word about the object.
    async fn look(&self, key: &str) -> GatewayResult<StoredInfo> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let path = self.reach(key).await?;
        let asked = async {
            match self.store.get_opts(&path, options).await {
                // S3 denies a missing object to a client that may not list the whole bucket, and an existing one to a
                // client that may not read it. A listing of its part of the bucket tells which, if it is allowed;
                // otherwise nobody knows.
                Err(denied @ object_store::Error::PermissionDenied { .. })
                    if self.kind == BackendKind::S3 =>
                {
                    match self.is_listed(&path).await {
                        Ok(false) => Err(object_store::Error::NotFound {
                            path: path.to_string(),
                            source: Box::new(denied),
                        }),
                        _ => Err(denied),
                    }
                }
                outcome => outcome,
            }
        };
        let answer = self.patiently("HEAD", asked).await?;
        Ok(found(&answer.meta, &answer.attributes))
    }

    /// Whether a listing has this key.
    ///
    /// # Errors
    /// When the store can't be listed.
    pub(crate) async fn lists(&self, key: &str) -> GatewayResult<bool> {
        let path = self.locate(key)?;
        self.patiently("LIST", self.is_listed(&path)).await
    }

    /// Whether a listing has something at this path.
    pub(super) async fn is_listed(&self, path: &Path) -> object_store::Result<bool> {
        let folder = path.as_ref().rfind('/').map(|end| Path::parse(&path.as_ref()[..end])).transpose()?;
        // An S3 store has `a/` before all others below it.
        let offset = if is_marker(path) { None } else { Some(path_before(path)?) };
        let mut listed = self.listed_from(folder, offset);
        // These two come sooner than their paths would.
        let is_above = |found: &Path| {
            let found = found.as_ref();
            found.contains(NO_KEY)
                || found.strip_suffix(EMPTY).is_some_and(|folder| path.as_ref().starts_with(folder))
        };
        while let Some(meta) = listed.next().await.transpose()?
            && (meta.location <= *path || is_above(&meta.location))
        {
            if meta.location == *path {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// An ETag without its quotes.
pub(crate) fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// A path behind which a listing soon comes to this one, if it is there.
fn path_before(path: &Path) -> object_store::Result<Path> {
    let text = path.as_ref();
    let Some(last) = text.chars().next_back() else { return Ok(Path::ROOT) };
    let rest = &text[..text.len() - last.len_utf8()];
    let former = u32::from(last).checked_sub(1).and_then(char::from_u32);
    // A former key that no path can have is left out: then the listing has some more before it.
    let former = former.filter(|former| !former.is_ascii_control() && *former != '/');
    let before = former.map_or_else(|| rest.to_owned(), |former| format!("{rest}{former}~~"));
    Ok(Path::parse(before)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_matches_s3_multipart_etag() {
        let etag_of = |size: usize, step: usize| {
            let mut fingerprint = EtagFingerprint::new(size as u64).unwrap();
            vec![7; size].chunks(step).for_each(|piece| fingerprint.update(piece).unwrap());
            fingerprint.etag().unwrap()
        };
        assert_eq!(etag_of(0, 1), "d41d8cd98f00b204e9800998ecf8427e");
        let (part, rest) = (PART_BYTES as usize, 100_000);
        let whole = etag_of(part, 1 << 20);
        assert!(is_md5(&whole));
        let parts = [whole.clone(), whole, etag_of(rest, rest)];
        let expected = multipart_etag(parts.iter().map(String::as_str)).unwrap();
        for step in [part - 1, 1 << 20, 3 * part] {
            assert_eq!(etag_of(2 * part + rest, step), expected);
        }
        assert!(expected.ends_with("-3") && etag_of(2 * part, part).ends_with("-2"));
    }

    #[test]
    fn listing_starts_shortly_before_wanted_key() {
        for (path, expected) in [
            ("a/b/c", "a/b/b~~"),
            ("%underlay-cluster", "%underlay-clusteq~~"),
            ("a/b0", "a/b"),
            ("a/0", "a"),
            ("0", ""),
            ("a/\u{e9}", "a/\u{e8}~~"),
            ("a/\u{80}", "a"),
        ] {
            let path = Path::parse(path).unwrap();
            let begin = path_before(&path).unwrap();
            assert!(begin.as_ref() == expected && begin < path, "{begin}");
        }
    }

    #[test]
    fn etags_are_compared_where_they_are_written_alike() {
        let (md5, other) = ("0123456789abcdef0123456789abcdef", "ffff456789abcdef0123456789abcdef");
        assert!(is_like(other, md5) && is_like(&format!("{other}-3"), &format!("{md5}-3")));
        for (etag, made) in [("7", md5), (&md5[1..], md5), (&format!("{md5}-3"), md5)] {
            assert!(!is_like(etag, made) && !is_like(made, etag), "{etag}");
        }
        assert!(!is_like(&format!("{md5}-3"), &format!("{md5}-4")));
        assert!(is_same(Some("W/\"A\""), Some("a")) && !is_same(None, None) && !is_same(Some("a"), None));
    }
}
