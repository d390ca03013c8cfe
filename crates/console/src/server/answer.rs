//! Answers. A request's result is written once, and becomes a page or JSON for its reader. Refusals become either in
//! one place, [`finish`], which all answers pass.

use std::sync::LazyLock;

use axum::body::{Body, to_bytes};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, Response, StatusCode};
use axum::response::IntoResponse;
use maud::Markup;
use serde::Serialize;
use serde_json::{Map, Value};

use super::caller::AnswerForm;
use super::outsiders;
use crate::page;

/// Scripts, styles and connections of this server's own, nothing written into a page, nothing from elsewhere, and in no
/// frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Of a report, which has its styles in itself: a document of no origin, without scripts, forms or connections.
const REPORT_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                             form-action 'none'; frame-ancestors 'none'";
/// Of a page for those who were not let in, who get no style sheet: its one style is in it.
static OUTSIDERS_POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src '{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        *outsiders::STYLE_HASH
    )
});

const HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // With `no-referrer`, a browser says `Origin: null` of our own forms, as of a page of somebody else's.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];
/// Of a form: a study is its largest part.
pub(super) const MAX_FORM_BYTES: usize = 6 << 20;
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// Of what the framework says about a request that it can't read.
const MAX_SAID_BYTES: usize = 4 << 10;

/// The response as sent.
pub(super) type SentResponse = Response<Body>;

/// An answer in the form that its reader wants. Only the functions below make one, so that no handler answers a program
/// with a page.
pub(super) struct PageAnswer(SentResponse);

/// A page, with what it may load.
pub(super) enum HtmlPage {
    /// With the console's own frame and style sheets.
    Framed(Markup),
    /// A document with its styles in itself.
    Report(String),
}

impl PageAnswer {
    /// A view: people get it as a page and programs as JSON.
    pub(super) fn view(
        form: AnswerForm,
        page: impl FnOnce() -> Result<HtmlPage, ActionRefusal>,
        data: impl FnOnce() -> Result<String, ActionRefusal>,
    ) -> Result<PageAnswer, ActionRefusal> {
        match form {
            AnswerForm::Page => Ok(PageAnswer(page()?.sent())),
            AnswerForm::Json => Ok(PageAnswer(sent(StatusCode::OK, JSON, data()?))),
        }
    }

    /// An answer that only programs ask for.
    pub(super) fn json(value: &impl Serialize) -> Result<PageAnswer, ActionRefusal> {
        Ok(PageAnswer(sent(StatusCode::OK, JSON, json_text(value)?)))
    }

    /// Content with the same form for all readers: figures for Prometheus, a file, pieces of a page.
    pub(super) fn from_body(content_type: &'static str, body: impl Into<Body>) -> PageAnswer {
        PageAnswer(sent(StatusCode::OK, content_type, body))
    }

    /// A report that is kept as a file.
    pub(super) fn report_file(page: String) -> PageAnswer {
        PageAnswer(HtmlPage::Report(page).sent())
    }

    /// A piece of a page, for the page that asked for it.
    pub(super) fn piece(piece: Markup) -> PageAnswer {
        PageAnswer(sent(StatusCode::OK, HTML, piece.into_string()))
    }

    /// Something was done: programs read what, and a person goes back to where they were.
    pub(super) fn done(
        form: AnswerForm,
        reply: &impl Serialize,
        back: &str,
    ) -> Result<PageAnswer, ActionRefusal> {
        match form {
            AnswerForm::Json => PageAnswer::json(reply),
            AnswerForm::Page => see(back).map(PageAnswer),
        }
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: &str) -> PageAnswer {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().insert(name, value);
        }
        self
    }
}

impl HtmlPage {
    fn sent(self) -> SentResponse {
        match self {
            HtmlPage::Framed(page) => sent(StatusCode::OK, HTML, page.into_string()),
            HtmlPage::Report(page) => {
                let mut answer = sent(StatusCode::OK, HTML, page);
                let policy = HeaderValue::from_static(REPORT_POLICY);
                answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
                answer
            }
        }
    }
}

impl IntoResponse for PageAnswer {
    fn into_response(self) -> SentResponse {
        self.0
    }
}

pub(super) fn json_text(value: &impl Serialize) -> Result<String, ActionRefusal> {
    serde_json::to_string(value).map_err(|error| ActionRefusal::failed(error.to_string()))
}

/// To another page, by GET.
///
/// # Errors
/// When that is no address.
pub(super) fn see(place: &str) -> Result<SentResponse, ActionRefusal> {
    let place = HeaderValue::from_str(place).map_err(|_| ActionRefusal::invalid("that is no address"))?;
    let mut answer = StatusCode::SEE_OTHER.into_response();
    answer.headers_mut().insert(header::LOCATION, place);
    Ok(answer)
}

/// A page that goes on to another one by itself.
pub(super) fn page_that_goes_on(place: &str) -> SentResponse {
    with_own_style(sent(StatusCode::OK, HTML, outsiders::page_that_goes_on(place).into_string()))
}

/// Of a page that has the style of outsiders' pages in it.
fn with_own_style(mut answer: SentResponse) -> SentResponse {
    if let Ok(policy) = HeaderValue::from_str(&OUTSIDERS_POLICY) {
        answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

fn sent(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> SentResponse {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Why something is not answered or not done. Where it is sent it has no form yet: [`finish`] gives it that of its
/// reader.
#[derive(Clone, Debug)]
pub(super) struct ActionRefusal {
    status: StatusCode,
    problem: String,
    /// More for programs, beside `problem`.
    more: Map<String, Value>,
    page: RefusalPage,
}

#[derive(Clone, Debug)]
enum RefusalPage {
    /// A page of the console with nothing but the problem.
    Plain,
    /// Where a person goes on, with what they typed.
    GoesOn(String),
    /// For those who were not let in: what to do next, and a place to go to.
    Outside { next: String, link: Option<String> },
}

impl ActionRefusal {
    fn new(status: StatusCode, problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal { status, problem: problem.into(), more: Map::new(), page: RefusalPage::Plain }
    }

    /// 400: the request makes no sense, regardless of the state of things.
    pub(super) fn invalid(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::BAD_REQUEST, problem)
    }

    /// 403: the caller may not ask for it.
    pub(super) fn forbidden(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::FORBIDDEN, problem)
    }

    /// 404: what it names is not there.
    pub(super) fn missing(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::NOT_FOUND, problem)
    }

    /// 409: it can't be done as things are now.
    pub(super) fn conflict(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::CONFLICT, problem)
    }

    /// 413: a form is longer than any may be.
    pub(super) fn too_long() -> ActionRefusal {
        let limit = MAX_FORM_BYTES >> 20;
        ActionRefusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request is too long: expected {limit} MiB at most"),
        )
    }

    /// 500: it should have worked.
    pub(super) fn failed(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
    }

    /// 503: too much is in flight, or what was asked for takes too long.
    pub(super) fn busy(problem: impl Into<String>) -> ActionRefusal {
        ActionRefusal::new(StatusCode::SERVICE_UNAVAILABLE, problem)
    }

    /// Somebody is not let in: why, and what to do next.
    pub(super) fn outside(status: StatusCode, problem: &str, next: impl Into<String>) -> ActionRefusal {
        let page = RefusalPage::Outside { next: next.into(), link: None };
        ActionRefusal { page, ..ActionRefusal::new(status, problem) }
    }

    /// Of [`outside`](ActionRefusal::outside): where the next step leads.
    pub(super) fn leading_to(mut self, address: String) -> ActionRefusal {
        if let RefusalPage::Outside { link, .. } = &mut self.page {
            *link = Some(address);
        }
        self
    }

    /// The page on which a person goes on.
    pub(super) fn on_page(mut self, page: Markup) -> ActionRefusal {
        self.page = RefusalPage::GoesOn(page.into_string());
        self
    }

    /// More for programs, beside `problem`.
    pub(super) fn telling(mut self, key: &str, value: Value) -> ActionRefusal {
        self.more.insert(key.to_owned(), value);
        self
    }

    fn sent_as(self, form: AnswerForm) -> SentResponse {
        let ActionRefusal { status, problem, mut more, page } = self;
        let mut answer = match (form, page) {
            (AnswerForm::Json, page) => {
                let problem = match page {
                    RefusalPage::Outside { next, .. } => format!("{problem} {next}"),
                    _ => problem,
                };
                more.insert("problem".to_owned(), problem.into());
                sent(status, JSON, Value::Object(more).to_string())
            }
            (AnswerForm::Page, RefusalPage::Plain) => {
                sent(status, HTML, page::problem(title(status), &problem).into_string())
            }
            (AnswerForm::Page, RefusalPage::GoesOn(page)) => sent(status, HTML, page),
            (AnswerForm::Page, RefusalPage::Outside { next, link }) => {
                let page = outsiders::page(title(status), &problem, &next, link.as_deref());
                with_own_style(sent(status, HTML, page.into_string()))
            }
        };
        let (name, value) = match status {
            StatusCode::SERVICE_UNAVAILABLE => (header::RETRY_AFTER, "5"),
            StatusCode::UNAUTHORIZED => (header::WWW_AUTHENTICATE, "Bearer"),
            _ => return answer,
        };
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
        answer
    }
}

fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "You are not signed in",
        StatusCode::FORBIDDEN => "This is not allowed",
        StatusCode::NOT_FOUND => "It is not there",
        StatusCode::CONFLICT => "It was not done",
        StatusCode::MISDIRECTED_REQUEST => "The console has another name",
        StatusCode::SERVICE_UNAVAILABLE => "It takes too long",
        other => other.canonical_reason().unwrap_or("Problem"),
    }
}

impl IntoResponse for ActionRefusal {
    fn into_response(self) -> SentResponse {
        let mut answer = self.status.into_response();
        answer.extensions_mut().insert(self);
        answer
    }
}

/// The final response: every refusal in the form of its reader, those of the framework too, and common headers.
pub(super) async fn finish(mut answer: SentResponse, form: AnswerForm, method: &Method) -> SentResponse {
    if let Some(refusal) = answer.extensions_mut().remove::<ActionRefusal>() {
        answer = refusal.sent_as(form);
    } else if answer.status().is_client_error() || answer.status().is_server_error() {
        let (head, body) = answer.into_parts();
        let content = to_bytes(body, MAX_SAID_BYTES).await.unwrap_or_default();
        let refusal = match head.status {
            StatusCode::PAYLOAD_TOO_LARGE => ActionRefusal::too_long(),
            StatusCode::METHOD_NOT_ALLOWED => {
                ActionRefusal::new(head.status, format!("{method} is not allowed here: see docs/console.md"))
            }
            other if content.is_empty() => {
                ActionRefusal::new(other, other.canonical_reason().unwrap_or("problem"))
            }
            other => ActionRefusal::new(other, String::from_utf8_lossy(&content)),
        };
        answer = refusal.sent_as(form);
        if let Some(allowed) = head.headers.get(header::ALLOW) {
            answer.headers_mut().insert(header::ALLOW, allowed.clone());
        }
    }
    for (name, value) in HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer.headers_mut().entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    // Another caller, or another `Accept`, may get another form.
    answer.headers_mut().entry(header::VARY).or_insert(HeaderValue::from_static("accept, authorization"));
    answer
}
