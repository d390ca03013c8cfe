//! Who asks, and in which form they read the answer.

use axum::http::{HeaderMap, header};

/// By which of the console's sockets a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    Network,
    /// The Unix socket, on which only this user's programs are heard.
    OwnSocket,
}

/// Who asks, and so what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestCaller {
    /// A browser's session: everything, by our own forms.
    Session,
    /// A client with the token of `--token-file`. It only reads, since any program that takes the port first receives
    /// that token.
    Monitor,
    /// A program of this user on the Unix socket: everything.
    OwnProgram,
}

/// In which form an answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerForm {
    Page,
    Json,
}

/// The guard's findings about a request; handlers get them as an extension.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerInfo {
    pub caller: RequestCaller,
    pub form: AnswerForm,
}

impl AnswerForm {
    /// Programs read JSON: those that send a token, come by the Unix socket or ask for it. So does everybody below
    /// `/api/`.
    pub(super) fn choose(way: SocketKind, headers: &HeaderMap, path: &str) -> AnswerForm {
        let is_for_programs = path == "/api" || path.starts_with("/api/") || path == "/metrics";
        let is_program = way == SocketKind::OwnSocket || headers.contains_key(header::AUTHORIZATION);
        if is_for_programs || is_program || prefers_json(headers) {
            AnswerForm::Json
        } else {
            AnswerForm::Page
        }
    }
}

/// Whether `Accept` names JSON and no page. A browser that opens an address names pages.
fn prefers_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut names_json = false;
    for range in accepted.flat_map(|header| header.split(',')) {
        let kind = range.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml") {
            return false;
        }
        names_json |= kind.eq_ignore_ascii_case("application/json");
    }
    names_json
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn form(path: &str, headers: &[(HeaderName, &str)]) -> AnswerForm {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        AnswerForm::choose(SocketKind::Network, &map, path)
    }

    #[test]
    fn programs_read_json_and_browsers_pages() {
        const CHROMIUM: &str =
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";
        assert_eq!(form("/", &[(header::ACCEPT, CHROMIUM)]), AnswerForm::Page);
        assert_eq!(form("/", &[]), AnswerForm::Page);
        assert_eq!(form("/", &[(header::ACCEPT, "*/*")]), AnswerForm::Page);
        assert_eq!(form("/", &[(header::ACCEPT, "application/json")]), AnswerForm::Json);
        assert_eq!(form("/", &[(header::ACCEPT, "text/plain, Application/JSON;q=0.9")]), AnswerForm::Json);
        assert_eq!(form("/", &[(header::ACCEPT, "text/html, application/json")]), AnswerForm::Page);
        assert_eq!(form("/", &[(header::AUTHORIZATION, "Bearer wrong")]), AnswerForm::Json);
        assert_eq!(form("/apiary", &[]), AnswerForm::Page);
        for path in ["/api", "/api/", "/api/runs", "/metrics"] {
            assert_eq!(form(path, &[(header::ACCEPT, CHROMIUM)]), AnswerForm::Json, "{path}");
        }
        assert_eq!(AnswerForm::choose(SocketKind::OwnSocket, &HeaderMap::new(), "/"), AnswerForm::Json);
    }

    proptest! {
        #[test]
        fn accept_header_of_any_bytes_never_panics(text in "\\PC{0,80}") {
            let _ = form("/", &[(header::ACCEPT, &text)]);
        }
    }
}
