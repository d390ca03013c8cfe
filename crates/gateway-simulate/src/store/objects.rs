//! The objects of a simulated bucket, by S3's rules.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attributes, Error, Result};
use openssl::hash::{MessageDigest, hash};

use crate::script::StoreSetup;

/// The substitute for the empty segment behind a final slash, above the gateway's own layer of HTTP.
const WORD: &str = "%underlay-empty";

/// An object as the store has it.
#[derive(Clone, Debug)]
pub struct StoredObject {
    pub bytes: Bytes,
    pub attributes: Attributes,
    pub etag: String,
    pub modified: DateTime<Utc>,
}

/// An upload in parts that is not complete.
#[derive(Debug)]
pub(super) struct OpenUpload {
    pub(super) key: String,
    pub(super) attributes: Attributes,
    pub(super) parts: BTreeMap<usize, Bytes>,
    /// Nobody can be blamed for what is left of it: its gateway died, or could not reach the store.
    pub(super) is_excused: bool,
    pub(super) gateway: usize,
}

#[derive(Debug)]
pub(super) struct BucketObjects {
    setup: StoreSetup,
    objects: BTreeMap<String, StoredObject>,
    pub(super) uploads: BTreeMap<u64, OpenUpload>,
    next_number: u64,
}

/// The name that others know an object by.
pub(crate) fn key_of(path: &Path) -> String {
    match path.as_ref().strip_suffix(WORD) {
        Some(rest) if rest.ends_with('/') => rest.to_owned(),
        _ => path.as_ref().to_owned(),
    }
}

/// # Errors
/// When nobody could reach an object of this name by `object_store`.
pub(super) fn path_of(key: &str) -> Result<Path> {
    let named = if key.ends_with('/') { format!("{key}{WORD}") } else { key.to_owned() };
    Ok(Path::parse(named)?)
}

pub(super) fn md5(bytes: &[u8]) -> String {
    let sum = hash(MessageDigest::md5(), bytes).map(|sum| sum.to_vec()).unwrap_or_default();
    base16ct::lower::encode_string(&sum)
}

pub(super) fn not_found(key: &str) -> Error {
    Error::NotFound { path: key.to_owned(), source: "404 Not Found: NoSuchKey".into() }
}

pub(super) fn precondition(key: &str) -> Error {
    Error::Precondition { path: key.to_owned(), source: "412 Precondition Failed".into() }
}

/// The answer to what would be refused again.
pub(super) fn refused(reason: &str) -> Error {
    Error::NotSupported { source: format!("400 Bad Request: {reason}").into() }
}

/// A PUT's precondition.
#[derive(Clone, Debug)]
pub(super) enum PutPrecondition {
    Anything,
    Nothing,
    Version(Option<String>),
}

impl BucketObjects {
    pub(super) fn new(setup: StoreSetup) -> BucketObjects {
        BucketObjects { setup, objects: BTreeMap::new(), uploads: BTreeMap::new(), next_number: 0 }
    }

    pub(super) fn get(&self, key: &str) -> Option<&StoredObject> {
        self.objects.get(key)
    }

    fn etag(&mut self, of_bytes: &str) -> String {
        self.next_number += 1;
        match self.setup.has_etags_of_its_own {
            false => format!("\"{of_bytes}\""),
            // The number of parts shows all the same.
            true => {
                let other = md5(format!("{} {of_bytes}", self.next_number).as_bytes());
                format!("\"{other}{}\"", of_bytes.get(32..).unwrap_or_default())
            }
        }
    }

    fn check(&self, key: &str, wanted: &PutPrecondition) -> Result<()> {
        let current = self.get(key);
        match wanted {
            PutPrecondition::Anything => Ok(()),
            PutPrecondition::Nothing if current.is_none() => Ok(()),
            PutPrecondition::Nothing => {
                Err(Error::AlreadyExists { path: key.to_owned(), source: "412 Precondition Failed".into() })
            }
            PutPrecondition::Version(etag)
                if current.is_some_and(|current| Some(&current.etag) == etag.as_ref()) =>
            {
                Ok(())
            }
            PutPrecondition::Version(_) => Err(precondition(key)),
        }
    }

    /// Returns the ETag.
    pub(super) fn put(
        &mut self,
        key: &str,
        bytes: Bytes,
        attributes: Attributes,
        wanted: &PutPrecondition,
        now: DateTime<Utc>,
    ) -> Result<String> {
        self.check(key, wanted)?;
        let sum = md5(&bytes);
        Ok(self.insert(key, bytes, attributes, &sum, now))
    }

    fn insert(
        &mut self,
        key: &str,
        bytes: Bytes,
        attributes: Attributes,
        sum: &str,
        now: DateTime<Utc>,
    ) -> String {
        let etag = self.etag(sum);
        let object = StoredObject { bytes, attributes, etag: etag.clone(), modified: now };
        self.objects.insert(key.to_owned(), object);
        etag
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.objects.remove(key);
    }

    pub(super) fn copy(&mut self, from: &str, to: &str, is_new: bool, now: DateTime<Utc>) -> Result<()> {
        let source = self.get(from).cloned().ok_or_else(|| not_found(from))?;
        if self.setup.most_copy_bytes.is_some_and(|most| source.bytes.len() as u64 > most) {
            return Err(refused("InvalidRequest: the source is too large to copy"));
        }
        if is_new {
            self.check(to, &PutPrecondition::Nothing)?;
        }
        let sum = md5(&source.bytes);
        self.insert(to, source.bytes, source.attributes, &sum, now);
        Ok(())
    }

    pub(super) fn begin_upload(&mut self, key: &str, attributes: Attributes, gateway: usize) -> u64 {
        self.next_number += 1;
        let upload = OpenUpload {
            key: key.to_owned(),
            attributes,
            parts: BTreeMap::new(),
            is_excused: false,
            gateway,
        };
        self.uploads.insert(self.next_number, upload);
        self.next_number
    }

    pub(super) fn put_part(&mut self, number: u64, part: usize, bytes: Bytes) -> Result<()> {
        let upload = self.uploads.get_mut(&number).ok_or_else(|| not_found("NoSuchUpload"))?;
        upload.parts.insert(part, bytes);
        Ok(())
    }

    pub(super) fn complete(&mut self, number: u64, parts: usize, now: DateTime<Utc>) -> Result<String> {
        let upload = self.uploads.get(&number).ok_or_else(|| not_found("NoSuchUpload"))?;
        if upload.parts.len() != parts || upload.parts.keys().copied().ne(0..parts) {
            return Err(Error::Generic { store: "S3", source: "400 Bad Request: InvalidPart".into() });
        }
        let Some(upload) = self.uploads.remove(&number) else { return Err(not_found("NoSuchUpload")) };
        let mut sums = Vec::new();
        let mut whole = Vec::new();
        for part in upload.parts.values() {
            sums.extend(hash(MessageDigest::md5(), part).map(|sum| sum.to_vec()).unwrap_or_default());
            whole.extend_from_slice(part);
        }
        let sum = format!("{}-{parts}", md5(&sums));
        Ok(self.insert(&upload.key, whole.into(), upload.attributes, &sum, now))
    }

    pub(super) fn abort(&mut self, number: u64) {
        self.uploads.remove(&number);
    }

    /// Up to `page` objects behind `after` whose keys begin with `prefix`, and whether there are more.
    pub(super) fn list(&self, prefix: &str, after: Option<&str>) -> (Vec<(String, StoredObject)>, bool) {
        use std::ops::Bound;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(prefix.to_owned()),
        };
        let mut found = self
            .objects
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, object)| (key.clone(), object.clone()));
        let page: Vec<_> = found.by_ref().take(self.setup.page.max(1)).collect();
        let has_more = found.next().is_some();
        (page, has_more)
    }

    pub(super) fn all(&self) -> &BTreeMap<String, StoredObject> {
        &self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::StoreKind;

    fn setup(kind: StoreKind) -> StoreSetup {
        StoreSetup {
            kind,
            most_copy_bytes: Some(10),
            has_etags_of_its_own: false,
            page: 2,
            before: Vec::new(),
        }
    }

    fn put(objects: &mut BucketObjects, key: &str, text: &str, wanted: &PutPrecondition) -> Result<String> {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        objects.put(key, bytes, Attributes::new(), wanted, DateTime::UNIX_EPOCH)
    }

    #[test]
    fn conditions_are_s3_s() {
        let mut objects = BucketObjects::new(setup(StoreKind::S3));
        let first = put(&mut objects, "a", "1", &PutPrecondition::Nothing).unwrap();
        assert!(matches!(
            put(&mut objects, "a", "2", &PutPrecondition::Nothing),
            Err(Error::AlreadyExists { .. })
        ));
        let other = PutPrecondition::Version(Some("\"other\"".to_owned()));
        assert!(matches!(put(&mut objects, "a", "2", &other), Err(Error::Precondition { .. })));
        assert!(put(&mut objects, "a", "2", &PutPrecondition::Version(Some(first))).is_ok());
        assert_eq!(objects.get("a").unwrap().bytes, "2");
    }

    #[test]
    fn copies_have_a_limit() {
        let mut objects = BucketObjects::new(setup(StoreKind::S3));
        put(&mut objects, "a", "short", &PutPrecondition::Anything).unwrap();
        put(&mut objects, "b", "longer than that", &PutPrecondition::Anything).unwrap();
        objects.copy("a", "c", false, DateTime::UNIX_EPOCH).unwrap();
        assert!(objects.copy("a", "c", true, DateTime::UNIX_EPOCH).is_err());
        let refusal = objects.copy("b", "c", false, DateTime::UNIX_EPOCH).unwrap_err();
        assert!(matches!(refusal, Error::NotSupported { .. }));
        assert!(matches!(objects.copy("x", "c", false, DateTime::UNIX_EPOCH), Err(Error::NotFound { .. })));
    }

    #[test]
    fn listing_continues_after_its_last_key() {
        let mut objects = BucketObjects::new(setup(StoreKind::S3));
        for key in ["a/", "a/b", "a/c", "b"] {
            put(&mut objects, key, key, &PutPrecondition::Anything).unwrap();
        }
        let names = |(page, more): (Vec<(String, StoredObject)>, bool)| {
            (page.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), more)
        };
        assert_eq!(names(objects.list("a/", None)), (vec!["a/".to_owned(), "a/b".to_owned()], true));
        assert_eq!(names(objects.list("a/", Some("a/b"))), (vec!["a/c".to_owned()], false));
    }

    #[test]
    fn completed_upload_has_its_parts_and_etag() {
        let mut objects = BucketObjects::new(setup(StoreKind::S3));
        let number = objects.begin_upload("a", Attributes::new(), 0);
        objects.put_part(number, 1, "2".into()).unwrap();
        assert!(objects.complete(number, 2, DateTime::UNIX_EPOCH).is_err());
        objects.put_part(number, 0, "1".into()).unwrap();
        let etag = objects.complete(number, 2, DateTime::UNIX_EPOCH).unwrap();
        assert!(
            etag.ends_with("-2\"") && objects.get("a").unwrap().bytes == "12" && objects.uploads.is_empty()
        );
    }

    #[test]
    fn directory_marker_has_a_name_for_others() {
        let path = path_of("a/").unwrap();
        assert_eq!((path.as_ref(), key_of(&path).as_str()), ("a/%underlay-empty", "a/"));
        assert_eq!(key_of(&path_of("a").unwrap()), "a");
    }
}
