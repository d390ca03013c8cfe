//! Conditions of requests: RFC 9110, section 13, and S3's own headers for the source of a copy. They are read here from
//! the headers themselves, since `s3s` knows neither lists of entity tags nor all forms of dates.

use hyper::header::{CACHE_CONTROL, ETAG, EXPIRES, HeaderMap, HeaderValue, LAST_MODIFIED};
use hyper::http::Extensions;
use s3s::dto::TimestampFormat;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::answers::{error, invalid, time};
use super::http_dates;
use super::rewriting::headers_with;
use crate::engine::{EtagCondition, SourceConditions, WriteConditions};
use crate::errors::GatewayError;
use crate::model::{ObjectRecord, now_ms};

/// The entity tags of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntityTags {
    Any,
    Listed(Vec<EntityTag>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntityTag {
    is_weak: bool,
    value: String,
}

impl EntityTags {
    /// Reads a list. Many clients of S3 leave the quotes out, and S3 takes any visible characters then.
    pub(super) fn parse(text: &str) -> Option<EntityTags> {
        if text.trim() == "*" {
            return Some(EntityTags::Any);
        }
        let (mut listed, mut rest) = (Vec::new(), text);
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return (!listed.is_empty()).then_some(EntityTags::Listed(listed));
            }
            let (is_weak, tag) = rest.strip_prefix("W/").map_or((false, rest), |tag| (true, tag));
            let value = match tag.strip_prefix('"') {
                Some(quoted) => {
                    let (value, tail) = quoted.split_once('"')?;
                    rest = tail;
                    value
                }
                None if is_weak => return None,
                None => {
                    let end = tag.find([',', ' ', '\t']).unwrap_or(tag.len());
                    rest = &tag[end..];
                    &tag[..end]
                }
            };
            let is_bare = value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'*'));
            if value.bytes().any(|byte| byte <= b' ' || byte == 0x7f) || (!tag.starts_with('"') && !is_bare) {
                return None;
            }
            rest = rest.trim_start_matches([' ', '\t']);
            if !rest.is_empty() && !rest.starts_with(',') {
                return None;
            }
            listed.push(EntityTag { is_weak, value: value.to_owned() });
        }
    }

    /// The strong comparison of RFC 9110, section 8.8.3.2. All ETags here are strong.
    fn has_strong(&self, etag: &str) -> bool {
        match self {
            EntityTags::Any => true,
            EntityTags::Listed(listed) => listed.iter().any(|tag| !tag.is_weak && tag.value == etag),
        }
    }

    fn has(&self, etag: &str) -> bool {
        match self {
            EntityTags::Any => true,
            EntityTags::Listed(listed) => listed.iter().any(|tag| tag.value == etag),
        }
    }

    /// As the engine compares.
    fn to_condition(&self, only_strong: bool) -> EtagCondition {
        let EntityTags::Listed(listed) = self else { return EtagCondition::Any };
        let compared = listed.iter().filter(|tag| !(only_strong && tag.is_weak));
        EtagCondition::OneOf(compared.map(|tag| tag.value.clone()).collect())
    }
}

/// The object that a part has to belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum IfRange {
    Tag(EntityTag),
    ModifiedAt(i64),
    /// It can't be read, so it can't hold.
    Nothing,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectPreconditions {
    if_match: Option<EntityTags>,
    if_none_match: Option<EntityTags>,
    modified_since_s: Option<i64>,
    unmodified_since_s: Option<i64>,
    if_range: Option<IfRange>,
}

impl ObjectPreconditions {
    /// Those of a request.
    ///
    /// # Errors
    /// When an entity tag can't be read.
    pub(super) fn from_request(
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> S3Result<ObjectPreconditions> {
        let names = ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"];
        let mut read = read(headers, extensions, names)?;
        // One that says nothing is no tag that the object has.
        read.if_range = headers
            .contains_key("if-range")
            .then(|| text_in(headers, "if-range").map_or(IfRange::Nothing, |text| if_range(&text)));
        Ok(read)
    }

    /// Those that the source of a copy has to meet.
    ///
    /// # Errors
    /// When an entity tag can't be read.
    pub(super) fn read_source(headers: &HeaderMap, extensions: &Extensions) -> S3Result<SourceConditions> {
        let names = [
            "x-amz-copy-source-if-match",
            "x-amz-copy-source-if-none-match",
            "x-amz-copy-source-if-modified-since",
            "x-amz-copy-source-if-unmodified-since",
        ];
        let read = read(headers, extensions, names)?;
        let ms = |seconds: Option<i64>| seconds.map(|seconds| seconds.saturating_mul(1000));
        Ok(SourceConditions {
            if_match: read.if_match.map(|tags| tags.to_condition(true)),
            if_none_match: read.if_none_match.map(|tags| tags.to_condition(false)),
            modified_since_ms: ms(read.modified_since_s),
            unmodified_since_ms: ms(read.unmodified_since_s),
        })
    }

    /// Those that what is there has to meet before a write replaces it.
    pub(super) fn to_write_conditions(&self) -> WriteConditions {
        let (if_none_match, unless_etag) = match &self.if_none_match {
            None => (false, None),
            Some(EntityTags::Any) => (true, None),
            Some(listed) => (false, Some(listed.to_condition(false))),
        };
        let if_match = self.if_match.as_ref().map(|tags| tags.to_condition(true));
        WriteConditions { if_match, if_none_match, unless_etag, ..WriteConditions::default() }
    }

    /// Those that the object of an upload has to meet before a part of it comes, which is checked again when the upload
    /// is completed if the client asks again.
    ///
    /// # Errors
    /// As a write's: `PreconditionFailed`, or `NoSuchKey`.
    pub(super) fn check_target(&self, former: Option<&ObjectRecord>) -> S3Result<()> {
        let is_met = match former {
            None if self.if_match.is_some() => return Err(error(GatewayError::NoSuchKey)),
            None => true,
            Some(record) => {
                self.if_match.as_ref().is_none_or(|tags| tags.has_strong(&record.etag))
                    && !self.if_none_match.as_ref().is_some_and(|tags| tags.has(&record.etag))
            }
        };
        if is_met { Ok(()) } else { Err(error(GatewayError::PreconditionFailed)) }
    }

    /// Whether an answer may have no bytes at all.
    pub(super) fn may_spare_the_body(&self) -> bool {
        self.if_match.is_some()
            || self.if_none_match.is_some()
            || self.modified_since_s.is_some()
            || self.unmodified_since_s.is_some()
    }

    /// Whether the part that a client asks for belongs to what it has. If not, it gets the whole: RFC 9110, section
    /// 13.1.5.
    pub(super) fn range_holds(&self, record: &ObjectRecord) -> bool {
        match &self.if_range {
            None => true,
            Some(IfRange::Tag(tag)) => !tag.is_weak && tag.value == record.etag,
            Some(IfRange::ModifiedAt(seconds)) => *seconds == record.modified_ms.div_euclid(1000),
            Some(IfRange::Nothing) => false,
        }
    }

    /// The conditions of a GET or HEAD.
    ///
    /// # Errors
    /// `PreconditionFailed`, or `NotModified` with the headers by which a client keeps its copy.
    pub(super) fn check_read(&self, record: &ObjectRecord) -> S3Result<()> {
        let modified_s = record.modified_ms.div_euclid(1000);
        // RFC 9110, section 13.2.2: an ETag outweighs a time.
        let fails = match (&self.if_match, self.unmodified_since_s) {
            (Some(wanted), _) => !wanted.has_strong(&record.etag),
            (None, Some(limit_s)) => modified_s > limit_s,
            (None, None) => false,
        };
        if fails {
            return Err(error(GatewayError::PreconditionFailed));
        }
        let is_same = match (&self.if_none_match, self.modified_since_s) {
            (Some(tags), _) => tags.has(&record.etag),
            (None, Some(limit_s)) => modified_s <= limit_s,
            (None, None) => false,
        };
        match is_same {
            true => Err(not_modified(record)),
            false => Ok(()),
        }
    }
}

/// RFC 9110, section 15.4.5, says which headers such an answer has.
fn not_modified(record: &ObjectRecord) -> S3Error {
    let mut headers = HeaderMap::new();
    let mut modified = Vec::new();
    let has_time = time(record.modified_ms).format(TimestampFormat::HttpDate, &mut modified).is_ok();
    let values = [
        (ETAG, Some(format!("\"{}\"", record.etag))),
        (LAST_MODIFIED, String::from_utf8(modified).ok().filter(|_| has_time)),
        (CACHE_CONTROL, record.headers.cache_control.clone()),
        (EXPIRES, record.headers.expires.clone()),
    ];
    for (name, value) in values {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(name, value);
        }
    }
    let mut answer = S3Error::new(S3ErrorCode::NotModified);
    answer.set_headers(headers);
    answer
}

fn read(
    headers: &HeaderMap,
    extensions: &Extensions,
    [if_match, if_none_match, modified, unmodified]: [&str; 4],
) -> S3Result<ObjectPreconditions> {
    let text = |name: &str| text_in(headers_with(headers, extensions, name), name);
    let tags = |name: &str| match text(name) {
        None => Ok(None),
        Some(text) => match EntityTags::parse(&text) {
            Some(tags) => Ok(Some(tags)),
            None => Err(invalid(format!("{name} is not a list of ETags: {text:?}"))),
        },
    };
    // RFC 9110, sections 13.1.3 and 13.1.4: what is no date is ignored, and so are several of them.
    let seconds = |name: &str| date(&text(name)?);
    Ok(ObjectPreconditions {
        if_match: tags(if_match)?,
        if_none_match: tags(if_none_match)?,
        modified_since_s: seconds(modified),
        unmodified_since_s: seconds(unmodified),
        if_range: None,
    })
}

fn if_range(text: &str) -> IfRange {
    if let Some(seconds) = date(text) {
        return IfRange::ModifiedAt(seconds);
    }
    match EntityTags::parse(text) {
        Some(EntityTags::Listed(mut listed)) if listed.len() == 1 => {
            listed.pop().map_or(IfRange::Nothing, IfRange::Tag)
        }
        _ => IfRange::Nothing,
    }
}

/// Seconds since 1970.
fn date(text: &str) -> Option<i64> {
    http_dates::parse(text, now_ms().div_euclid(1000))
}

/// All values of a header, which say together what one would say: RFC 9110, section 5.3. Empty ones say nothing.
fn text_in(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<String> = headers
        .get_all(name)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .filter(|value| !value.trim().is_empty())
        .collect();
    (!values.is_empty()).then(|| values.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(tags: &[(bool, &str)]) -> Option<EntityTags> {
        let tags =
            tags.iter().map(|(is_weak, value)| EntityTag { is_weak: *is_weak, value: (*value).to_owned() });
        Some(EntityTags::Listed(tags.collect()))
    }

    #[test]
    fn lists_of_entity_tags_are_read() {
        for (text, expected) in [
            ("*", Some(EntityTags::Any)),
            ("\"a\"", listed(&[(false, "a")])),
            ("a1-2", listed(&[(false, "a1-2")])),
            ("W/\"a\"", listed(&[(true, "a")])),
            ("\"a\", W/\"b\"", listed(&[(false, "a"), (true, "b")])),
            (" \"a\" ,\t\"b,c\",", listed(&[(false, "a"), (false, "b,c")])),
            ("a, b", listed(&[(false, "a"), (false, "b")])),
            ("no_etag/of:S3", listed(&[(false, "no_etag/of:S3")])),
            ("\"*\"", listed(&[(false, "*")])),
            ("\"a", None),
            ("\"a\"b", None),
            ("a b", None),
            ("*, \"a\"", None),
            ("W/a", None),
            ("", None),
            (",", None),
        ] {
            assert_eq!(EntityTags::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn weak_tags_are_compared_as_weak() {
        let tags = EntityTags::parse("W/\"a\", \"b\"").unwrap();
        assert!(tags.has("a") && !tags.has_strong("a") && tags.has_strong("b"));
        let one_of = |tags: &[&str]| EtagCondition::OneOf(tags.iter().map(|tag| (*tag).to_owned()).collect());
        assert_eq!(
            (tags.to_condition(true), tags.to_condition(false)),
            (one_of(&["b"]), one_of(&["a", "b"]))
        );
        assert_eq!(EntityTags::parse("W/\"a\"").unwrap().to_condition(true), one_of(&[]));
    }

    #[test]
    fn only_star_without_quotes_is_any_tag() {
        assert_eq!(EntityTags::parse("*").unwrap().to_condition(true), EtagCondition::Any);
        let quoted = EntityTags::parse("\"*\"").unwrap();
        assert_eq!(quoted.to_condition(true), EtagCondition::OneOf(vec!["*".to_owned()]));
        assert!(!quoted.has("a") && !quoted.has_strong("a"));
    }

    proptest! {
        #[test]
        fn arbitrary_condition_never_panics(text in "\\PC{0,40}", tags in "(W/|\"|[a-z]|,| ){0,20}") {
            let _ = (EntityTags::parse(&text), EntityTags::parse(&tags), if_range(&text), if_range(&tags));
        }
    }
}
