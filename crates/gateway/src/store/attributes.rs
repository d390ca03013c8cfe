//! Headers of objects as `object_store` has them, and back.

use object_store::{Attribute, AttributeValue, Attributes, ObjectMeta};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::{BackendKind, StoredInfo, wire};
use crate::headers;
use crate::model::ObjectHeaders;

/// The attributes that a store gets with an object.
pub(super) fn attributes(kind: BackendKind, headers: &ObjectHeaders) -> Attributes {
    let mut attributes = Attributes::new();
    if kind == BackendKind::Directory {
        // It has no place for them. Where the gateway is the only one to write, its metadata has them.
        return attributes;
    }
    let mut set = |attribute: Attribute, value: &Option<String>| {
        if let Some(value) = value {
            // Earlier versions took control characters, too.
            let is_lost = |one: char| {
                one.is_ascii_control() && one != '\t' && !is_planted(PlantedBug::HeaderPanicsFlusher)
            };
            let carried = value.replace(is_lost, " ");
            attributes.insert(attribute, AttributeValue::from(carried));
        }
    };
    set(Attribute::ContentType, &headers.content_type);
    set(Attribute::CacheControl, &headers.cache_control);
    set(Attribute::ContentDisposition, &headers.content_disposition);
    set(Attribute::ContentEncoding, &headers.content_encoding);
    set(Attribute::ContentLanguage, &headers.content_language);
    // `object_store` has no place for it, so it goes by another name as far as the wire.
    set(Attribute::Metadata(headers::EXPIRES.into()), &headers.expires);
    // Earlier versions took names that no request can carry. Their objects are to be stored all the same.
    let is_carried = |name: &str| headers::is_user_name(name) || is_planted(PlantedBug::HeaderPanicsFlusher);
    for (name, value) in headers.user.iter().filter(|(name, _)| is_carried(name)) {
        let written = match is_planted(PlantedBug::HeaderPanicsFlusher) {
            true => value.clone(),
            false => headers::written(value).into_owned(),
        };
        attributes.insert(Attribute::Metadata(name.clone().into()), AttributeValue::from(written));
    }
    attributes
}

/// Whether a request can carry this in a header. A listing may have ETags that none can.
pub(super) fn is_header_value(text: &str) -> bool {
    hyper::header::HeaderValue::from_str(text).is_ok()
}

pub(super) fn found(meta: &ObjectMeta, attributes: &Attributes) -> StoredInfo {
    let text = |attribute: Attribute| {
        attributes.get(&attribute).map(|value| wire::as_sent(value.as_ref()).into_owned())
    };
    let mut user: Vec<(String, String)> = attributes
        .iter()
        .filter_map(|(attribute, value)| match attribute {
            Attribute::Metadata(name) if name != headers::EXPIRES => {
                let sent = wire::as_sent(value.as_ref());
                Some((name.to_string(), headers::read(&sent).into_owned()))
            }
            _ => None,
        })
        .collect();
    user.sort();
    StoredInfo {
        size_bytes: meta.size,
        etag: meta.e_tag.clone().filter(|etag| is_header_value(etag)),
        modified_ms: meta.last_modified.timestamp_millis(),
        headers: ObjectHeaders {
            content_type: text(Attribute::ContentType),
            cache_control: text(Attribute::CacheControl),
            content_disposition: text(Attribute::ContentDisposition),
            content_encoding: text(Attribute::ContentEncoding),
            content_language: text(Attribute::ContentLanguage),
            expires: text(Attribute::Metadata(headers::EXPIRES.into())),
            user,
        },
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;
    use object_store::path::Path;

    use super::*;

    fn meta(etag: &str) -> ObjectMeta {
        ObjectMeta {
            location: Path::parse("a").unwrap(),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size: 1,
            e_tag: Some(etag.to_owned()),
            version: None,
        }
    }

    /// Objects that an earlier version acknowledged are stored all the same, as far as a request can carry them.
    #[test]
    fn headers_that_no_request_can_carry_stop_no_object() {
        let headers = ObjectHeaders {
            content_type: Some("image/png\u{1}".to_owned()),
            cache_control: Some("a\r\nb: c".to_owned()),
            user: vec![("a b".to_owned(), "c".to_owned()), ("d".to_owned(), "e\nf\0".to_owned())],
            ..ObjectHeaders::default()
        };
        let attributes = attributes(BackendKind::S3, &headers);
        assert_eq!(attributes.len(), 3);
        for (attribute, value) in &attributes {
            assert!(is_header_value(value), "{value:?}");
            if let Attribute::Metadata(name) = attribute {
                assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name}");
            }
        }
        assert_eq!(found(&meta("e"), &attributes).headers.user, [("d".to_owned(), "e\nf\0".to_owned())]);
    }

    #[test]
    fn attributes_round_trip_through_store() {
        let headers = ObjectHeaders {
            content_type: Some("text/plain".to_owned()),
            content_disposition: Some("attachment; filename=\"é =?UTF-8?B?w6k=?=\"".to_owned()),
            expires: Some("0".to_owned()),
            user: vec![("a".to_owned(), "é".to_owned()), ("b".to_owned(), "=?UTF-8?B?w6k=?=".to_owned())],
            ..ObjectHeaders::default()
        };
        assert_eq!(found(&meta("e"), &attributes(BackendKind::S3, &headers)).headers, headers);
    }

    /// It would come back as a condition, in a header.
    #[test]
    fn etag_unfit_for_header_is_none() {
        assert_eq!(found(&meta("a\nb"), &Attributes::new()).etag, None);
        assert_eq!(found(&meta("\"a\""), &Attributes::new()).etag.as_deref(), Some("\"a\""));
    }
}
