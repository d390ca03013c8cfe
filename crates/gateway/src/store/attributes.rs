//! Headers of objects as `object_store` has them, and back.

use object_store::{Attribute, AttributeValue, Attributes, ObjectMeta};

use super::{Found, Kind, wire};
use crate::headers;
use crate::model::Headers;

/// What a store is given with an object.
pub(super) fn attributes(kind: Kind, headers: &Headers) -> Attributes {
    let mut attributes = Attributes::new();
    if kind == Kind::Directory {
        // It has no place for them. Where the gateway is the only one to write, its metadata has them.
        return attributes;
    }
    let mut set = |attribute: Attribute, value: &Option<String>| {
        if let Some(value) = value {
            // Earlier versions took control characters, too.
            let carried = value.replace(|one: char| one.is_ascii_control() && one != '\t', " ");
            attributes.insert(attribute, AttributeValue::from(carried));
        }
    };
    set(Attribute::ContentType, &headers.content_type);
    set(Attribute::CacheControl, &headers.cache_control);
    set(Attribute::ContentDisposition, &headers.content_disposition);
    set(Attribute::ContentEncoding, &headers.content_encoding);
    set(Attribute::ContentLanguage, &headers.content_language);
    // Earlier versions took names that no request can carry. Their objects are to be stored all the same.
    for (name, value) in headers.user.iter().filter(|(name, _)| headers::is_user_name(name)) {
        let written = headers::written(value).into_owned();
        attributes.insert(Attribute::Metadata(name.clone().into()), AttributeValue::from(written));
    }
    attributes
}

/// Whether a request can carry this in a header. A listing may have ETags that none can.
pub(super) fn is_header_value(text: &str) -> bool {
    hyper::header::HeaderValue::from_str(text).is_ok()
}

pub(super) fn found(meta: &ObjectMeta, attributes: &Attributes) -> Found {
    let text = |attribute: Attribute| {
        attributes.get(&attribute).map(|value| wire::as_sent(value.as_ref()).into_owned())
    };
    let mut user: Vec<(String, String)> = attributes
        .iter()
        .filter_map(|(attribute, value)| match attribute {
            Attribute::Metadata(name) => {
                let sent = wire::as_sent(value.as_ref());
                Some((name.to_string(), headers::read(&sent).into_owned()))
            }
            _ => None,
        })
        .collect();
    user.sort();
    Found {
        size_bytes: meta.size,
        etag: meta.e_tag.clone().filter(|etag| is_header_value(etag)),
        modified_ms: meta.last_modified.timestamp_millis(),
        headers: Headers {
            content_type: text(Attribute::ContentType),
            cache_control: text(Attribute::CacheControl),
            content_disposition: text(Attribute::ContentDisposition),
            content_encoding: text(Attribute::ContentEncoding),
            content_language: text(Attribute::ContentLanguage),
            expires: None,
            user,
        },
    }
}
