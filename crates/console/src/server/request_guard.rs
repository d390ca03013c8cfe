//! The conditions of every request: for a name of this host, from a page of ours or none, from somebody who may ask for
//! it. Responses go through here too, so that everybody gets them in their form.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use futures_core::Stream as _;
use tokio::time::timeout;

use super::ServerShared;
use super::answer::{self, ActionRefusal, MAX_FORM_BYTES, SentResponse};
use super::caller::{AnswerForm, CallerInfo, RequestCaller, SocketKind};
use super::connection_limits::CountedConnection;
use crate::access::{bearer, cookie, host_name, is_own_origin, port_of};

const COOKIE: &str = "underlay-console";
/// Browsers take one of this name only for the host itself, by TLS.
const COOKIE_BY_TLS: &str = "__Host-underlay-console";
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Of a request that is too long.
const MAX_DRAINED_BYTES: usize = 64 << 20;
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How a browser comes in, for those who have not.
pub(super) const HOW_TO_ENTER: &str = "In a terminal of the user who started it, `underlay console --new-address` prints an address: open that in the browser within five minutes. It opens one session.";

pub(super) async fn guard(
    State(shared): State<Arc<ServerShared>>,
    mut request: Request,
    next: Next,
) -> SentResponse {
    let visitor = request.extensions().get::<CountedConnection>().cloned();
    let way = request.extensions().get::<SocketKind>().copied().unwrap_or(SocketKind::Network);
    let form = AnswerForm::choose(way, request.headers(), request.uri().path());
    let method = request.method().clone();
    let answer = match judge(&shared, way, &request) {
        Ok(GuardVerdict::In(_)) if !visitor.as_ref().is_some_and(CountedConnection::let_in) => {
            ActionRefusal::busy("too many connections are open: close some pages of this console")
                .into_response()
        }
        Ok(GuardVerdict::In(_)) if announced_bytes(request.headers()) > MAX_FORM_BYTES as u64 => {
            drain(request.into_body()).await;
            ActionRefusal::too_long().into_response()
        }
        Ok(GuardVerdict::In(caller)) => {
            request.extensions_mut().insert(CallerInfo { caller, form });
            next.run(request).await
        }
        Ok(GuardVerdict::Opened(answer)) => answer,
        Err(refusal) => refusal.into_response(),
    };
    answer::finish(answer, form, &method).await
}

fn announced_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Takes what is still coming, up to a limit: the sender reads the answer only then.
async fn drain(body: Body) {
    let mut stream = body.into_data_stream();
    let mut drained = 0;
    let take = async {
        while let Some(Ok(part)) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
            drained += part.len();
            if drained > MAX_DRAINED_BYTES {
                return;
            }
        }
    };
    let _ = timeout(DRAIN_LIMIT, take).await;
}

enum GuardVerdict {
    In(RequestCaller),
    /// A browser's session begins, or goes on without what was in its address.
    Opened(SentResponse),
}

/// A header that may be there once: of two, one could mean something else than the other.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ActionRefusal> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else { return Ok(None) };
    match (first.to_str(), all.next()) {
        (Ok(text), None) => Ok(Some(text)),
        (_, Some(_)) => Err(ActionRefusal::invalid(format!("the request has more than one {name} header"))),
        (Err(_), None) => {
            Err(ActionRefusal::invalid(format!("the request's {name} header is not plain text")))
        }
    }
}

fn judge(shared: &ServerShared, way: SocketKind, request: &Request) -> Result<GuardVerdict, ActionRefusal> {
    let headers = request.headers();
    let host = single(headers, &header::HOST)?;
    let (origin, authorization) =
        (single(headers, &header::ORIGIN)?, single(headers, &header::AUTHORIZATION)?);
    let (site, mode) = (single(headers, &SITE)?, single(headers, &MODE)?);
    let host = host
        .filter(|host| shared.names.allow(host) || is_for_browsers(shared, host))
        // A request may name its host in its first line as well.
        .filter(|host| request.uri().authority().is_none_or(|named| named.as_str() == *host))
        .ok_or_else(|| {
            ActionRefusal::outside(
                StatusCode::MISDIRECTED_REQUEST,
                "This name is not one that the console answers to.",
                "Use an address or `localhost`, or start the console with `--name` and this name.",
            )
        })?;
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if way == SocketKind::OwnSocket {
        // Where somebody forwards the socket to a port, pages reach it.
        if origin.is_some() || site.is_some() || mode.is_some() {
            return Err(ActionRefusal::forbidden(
                "the console's Unix socket is for programs: a browser opens the address that the console printed",
            ));
        }
        return Ok(GuardVerdict::In(RequestCaller::OwnProgram));
    }
    let is_own = origin.is_none_or(|origin| is_own_origin(origin, shared.scheme(), host));
    // A link from elsewhere may lead here; a request that a page elsewhere makes may not.
    let is_followed_link = mode == Some("navigate") && request.method() == Method::GET;
    let is_own_site = site.is_none_or(|site| matches!(site, "same-origin" | "none")) || is_followed_link;
    if !is_own || !is_own_site {
        return Err(ActionRefusal::outside(
            StatusCode::FORBIDDEN,
            "This request comes from a page that is not the console's.",
            "Open the console itself, and do it there.",
        ));
    }
    let is_token = |text: &str| shared.token.as_ref().is_some_and(|token| token.is(text));
    if let Some(authorization) = authorization {
        return match bearer(authorization).is_some_and(is_token) {
            true if is_reading => Ok(GuardVerdict::In(RequestCaller::Monitor)),
            true => Err(ActionRefusal::forbidden(format!(
                "the token of --token-file only reads. Commands are for programs of the console's user, by its Unix socket: curl \
                 --unix-socket {} http://localhost{}",
                shared.socket.path().display(),
                request.uri().path()
            ))),
            false => Err(ActionRefusal::outside(
                StatusCode::UNAUTHORIZED,
                "This is not the token of this console's --token-file.",
                "Send what is in that file as `Authorization: Bearer TOKEN`; without the option there is no token, and programs of the \
                 console's user use its Unix socket.",
            )),
        };
    }
    let is_known = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .filter_map(|header| cookie(header, cookie_name(shared)))
        .any(|session| shared.session.is(session));
    let is_at_its_name = is_for_browsers(shared, host);
    if let Some(token) = token_of(request.uri().query()) {
        let is_led_here = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
        let opening = LoginOpening { host, is_at_its_name, is_led_here, knows: is_known };
        return opened(shared, request, token, &opening).map(GuardVerdict::Opened);
    }
    if !is_at_its_name {
        return Err(ActionRefusal::outside(
            StatusCode::UNAUTHORIZED,
            "Browsers reach the console at its own name, `u-….localhost`, not at this one.",
            format!(
                "{HOW_TO_ENTER} Programs send the token of `--token-file` as `Authorization: Bearer TOKEN`."
            ),
        ));
    }
    if !is_known {
        return Err(ActionRefusal::outside(
            StatusCode::UNAUTHORIZED,
            "This browser has no session with this console: it never opened one, or the console has restarted.",
            HOW_TO_ENTER,
        ));
    }
    // A browser always says where a POST comes from.
    if !is_reading && origin.is_none() {
        return Err(ActionRefusal::forbidden("this request does not say which page it comes from"));
    }
    Ok(GuardVerdict::In(RequestCaller::Session))
}

/// How an address with a token was opened.
struct LoginOpening<'a> {
    host: &'a str,
    is_at_its_name: bool,
    /// By a link on a page of another name.
    is_led_here: bool,
    /// In a browser that has a session already.
    knows: bool,
}

/// Begins a session by what an address has, if that is the one to use next.
fn opened(
    shared: &ServerShared,
    request: &Request,
    token: &str,
    opening: &LoginOpening<'_>,
) -> Result<SentResponse, ActionRefusal> {
    let LoginOpening { host, is_at_its_name, is_led_here, knows: is_known } = *opening;
    let is_get = request.method() == Method::GET;
    // Who is in already, and opens an old address from a list of pages.
    if is_get && is_at_its_name && is_known {
        return answer::see(&without_token(request));
    }
    if shared.token.as_ref().is_some_and(|reading| reading.is(token)) {
        return Err(ActionRefusal::outside(
            StatusCode::FORBIDDEN,
            "This is the token of --token-file. It is for monitors, which only read, and opens no page.",
            HOW_TO_ENTER,
        ));
    }
    if is_get && !is_at_its_name && shared.entry.is_opened_by(token) {
        // By the port that the browser used, which may be forwarded here.
        let port = port_of(host).map(|port| format!(":{port}")).unwrap_or_default();
        let page = request.uri().path();
        let address = format!("{}://{}{port}{page}?token={token}", shared.scheme(), shared.name);
        return Err(ActionRefusal::outside(
            StatusCode::UNAUTHORIZED,
            "This address has the right token at the wrong name. The console has a name of its own, so that no other program of this \
             host gets its cookie.",
            format!("Open it at `{}{port}`. If the browser does not find that name, add it to /etc/hosts as 127.0.0.1.", shared.name),
        )
        .leading_to(address));
    }
    if !is_get || !is_at_its_name || !shared.entry.is_used_up_by(token) {
        return Err(ActionRefusal::outside(
            StatusCode::FORBIDDEN,
            "This address is no longer valid: it has been used, is older than five minutes, or is another console's.",
            HOW_TO_ENTER,
        ));
    }
    // Where a link led here, a browser keeps the new cookie back until a page of ours goes on.
    let mut answer = match is_led_here {
        true => answer::page_that_goes_on(&without_token(request)),
        false => answer::see(&without_token(request))?,
    };
    let secure = if shared.is_tls { "; Secure" } else { "" };
    let (cookie, session) = (cookie_name(shared), shared.session.reveal());
    let value = format!("{cookie}={session}; Path=/; HttpOnly; SameSite=Strict{secure}");
    if let Ok(value) = value.parse() {
        answer.headers_mut().insert(header::SET_COOKIE, value);
    }
    Ok(answer)
}

fn cookie_name(shared: &ServerShared) -> &'static str {
    if shared.is_tls { COOKIE_BY_TLS } else { COOKIE }
}

/// The name that was drawn for this start: no other server gets its cookies. By TLS any name of this host's: a cookie
/// alone opens nothing there.
fn is_for_browsers(shared: &ServerShared, host: &str) -> bool {
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
