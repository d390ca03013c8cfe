//! What every request must be: for a name of this host, from a page of ours or none, from somebody who knows the token.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;

use super::Shared;
use super::answer::{self, Answer};
use super::visits::Visitor;
use crate::access::{bearer, cookie, host_name, is_own_origin};

const COOKIE: &str = "underlay-console";
/// Browsers take one of this name only for the host itself, by TLS.
const COOKIE_BY_TLS: &str = "__Host-underlay-console";
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// How somebody showed that they may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// A browser's cookie.
    Cookie,
    /// A script's header, which no page of somebody else's can send.
    Bearer,
}

pub(super) async fn guard(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Answer {
    let visitor = request.extensions().get::<Visitor>().cloned();
    let answer = match judge(&shared, &request) {
        Judgement::In(_) if !visitor.as_ref().is_some_and(Visitor::let_in) => answer::problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many connections are open: close some pages of this console.",
        ),
        Judgement::In(shown) => {
            request.extensions_mut().insert(shown);
            next.run(request).await
        }
        Judgement::Out(answer) => answer,
    };
    answer::with_headers(answer)
}

enum Judgement {
    In(Shown),
    Out(Answer),
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    // Two of them, of which one could mean something else than the other.
    all.next().is_none().then_some(first)
}

fn judge(shared: &Shared, request: &Request) -> Judgement {
    let out = |status: StatusCode, text: &str| Judgement::Out(answer::problem(status, text));
    let headers = request.headers();
    let Some(host) =
        text(headers, &header::HOST).filter(|host| shared.names.allow(host) || is_for_browsers(shared, host))
    else {
        return out(
            StatusCode::MISDIRECTED_REQUEST,
            "This name is not one that the console answers to: use an address or localhost, or declare the name with --name.",
        );
    };
    let is_own = match (text(headers, &header::ORIGIN), headers.contains_key(header::ORIGIN)) {
        (Some(origin), _) => is_own_origin(origin, shared.scheme(), host),
        (None, is_there) => !is_there,
    };
    // A link from elsewhere may lead here; a request that a page elsewhere makes may not.
    let site = text(headers, &SITE);
    let is_followed_link = text(headers, &MODE) == Some("navigate") && request.method() == Method::GET;
    let is_own_site = site.is_none_or(|site| matches!(site, "same-origin" | "none")) || is_followed_link;
    if !is_own || !is_own_site {
        return out(StatusCode::FORBIDDEN, "This request comes from a page of somebody else's.");
    }
    let is_token = |text: &str| shared.token.as_ref().is_some_and(|token| token.is(text));
    if text(headers, &header::AUTHORIZATION).and_then(bearer).is_some_and(is_token) {
        return Judgement::In(Shown::Bearer);
    }
    if !is_for_browsers(shared, host) {
        return out(
            StatusCode::UNAUTHORIZED,
            "In a browser, open the address that the console printed when it started: it has a name of its own. Scripts send the token of --token-file as Authorization: Bearer.",
        );
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let knows = cookies
        .filter_map(|header| cookie(header, cookie_name(shared)))
        .any(|session| shared.session.is(session));
    if let Some(token) = token_of(request.uri().query()) {
        // Who is in already, and opens an old address from a list of pages.
        if knows && request.method() == Method::GET {
            return Judgement::Out(answer::see(&without_token(request)));
        }
        if request.method() != Method::GET || !(is_token(token) || shared.entry.is_used_up_by(token)) {
            return out(
                StatusCode::FORBIDDEN,
                "This address has been used, or is not this console's. Where the console was started, it has printed the one to use next.",
            );
        }
        let mut answer = answer::see(&without_token(request));
        let secure = if shared.is_tls { "; Secure" } else { "" };
        let (cookie, session) = (cookie_name(shared), shared.session.reveal());
        let value = format!("{cookie}={session}; Path=/; HttpOnly; SameSite=Strict{secure}");
        if let Ok(value) = value.parse() {
            answer.headers_mut().insert(header::SET_COOKIE, value);
        }
        return Judgement::Out(answer);
    }
    if !knows {
        return out(
            StatusCode::UNAUTHORIZED,
            "The console knows its users by a token: open the address that it printed when it started.",
        );
    }
    // A browser always says where a POST comes from.
    if request.method() != Method::GET
        && request.method() != Method::HEAD
        && !headers.contains_key(header::ORIGIN)
    {
        return out(StatusCode::FORBIDDEN, "This request does not say which page it comes from.");
    }
    Judgement::In(Shown::Cookie)
}

fn cookie_name(shared: &Shared) -> &'static str {
    if shared.is_tls { COOKIE_BY_TLS } else { COOKIE }
}

/// The name that was drawn for this start, of which no other server gets a cookie. By TLS any name of this host's: a cookie alone opens
/// nothing there.
fn is_for_browsers(shared: &Shared, host: &str) -> bool {
    if shared.is_tls {
        return shared.names.allow(host);
    }
    host_name(host).is_some_and(|name| name.eq_ignore_ascii_case(&shared.name))
}

/// It is plain characters alone, and so nothing of it is escaped.
fn token_of(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn without_token(request: &Request) -> String {
    let query = request.uri().query().unwrap_or_default();
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("token=")).collect();
    let path = request.uri().path();
    // `//name` would lead to another host.
    let path = format!("/{}", path.trim_start_matches('/'));
    if rest.is_empty() { path } else { format!("{path}?{}", rest.join("&")) }
}
