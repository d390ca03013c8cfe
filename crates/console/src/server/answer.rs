//! Answers, and what every one of them says to the browser.

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use maud::Markup;

use crate::page;

/// Scripts, styles and connections of this server's own, nothing written into a page, nothing from elsewhere, and in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Of a report, which has its styles in itself: a document of no origin, without scripts, forms or connections.
const REPORT_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                             form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // With `no-referrer`, a browser says `Origin: null` of our own forms, as of a page of somebody else's.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

pub(super) type Answer = Response<Body>;

/// Adds to an answer what it does not say by itself.
pub(super) fn with_headers(mut answer: Answer) -> Answer {
    for (name, value) in HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer.headers_mut().entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    answer
}

pub(super) fn of(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(super) fn html(page: Markup) -> Answer {
    of(StatusCode::OK, "text/html; charset=utf-8", page.into_string())
}

pub(super) fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => of(StatusCode::OK, "application/json", text),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// A page that has its styles in itself.
pub(super) fn report(page: String) -> Answer {
    let mut answer = of(StatusCode::OK, "text/html; charset=utf-8", page);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(REPORT_POLICY));
    answer
}

pub(super) fn problem(status: StatusCode, text: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or("Problem");
    let mut answer = html(page::problem(title, text));
    *answer.status_mut() = status;
    answer
}

pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    of(status, "text/plain; charset=utf-8", text.into())
}

/// To another page, by GET.
pub(super) fn see(place: &str) -> Answer {
    match HeaderValue::from_str(place) {
        Ok(place) => {
            let mut answer = StatusCode::SEE_OTHER.into_response();
            answer.headers_mut().insert(header::LOCATION, place);
            answer
        }
        Err(_) => problem(StatusCode::BAD_REQUEST, "that is no address"),
    }
}
