//! Which page an address has. Every change is a POST.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use underlay_record::RunRecord;
use underlay_report::ab::AbComparison;
use underlay_report::{RunDirectory, html};

use super::answer::{ActionRefusal, HtmlPage, MAX_FORM_BYTES, PageAnswer, json_text};
use super::caller::{CallerInfo, RequestCaller};
use super::named_runs::{load_run, run_directory, with_run};
use super::request_guard::guard;
use super::work::{WorkKind, on_a_thread};
use super::{ServerShared, actions, assets, stream, studies};
use crate::page::{self, ChartSpan, PageTopic};
use crate::{api, metrics};

type RouteState = State<Arc<ServerShared>>;
type RouteCaller = Extension<CallerInfo>;
type RouteResult = Result<PageAnswer, ActionRefusal>;

/// The pages' contents are below `/api/` too, where everybody gets them as JSON.
pub(super) fn router(shared: Arc<ServerShared>) -> Router {
    Router::new()
        .route("/", get(runs))
        .route("/api/runs", get(runs))
        .route("/runs/{run}", get(run))
        .route("/api/runs/{run}", get(run))
        .route("/runs/{run}/report", get(report))
        .route("/api/runs/{run}/report", get(report))
        .route("/runs/{run}/export", get(export))
        .route("/runs/{run}/logs", get(logs))
        .route("/api/runs/{run}/logs", get(logs))
        .route("/runs/{run}/cells/{file}", get(cell))
        .route("/api/runs/{run}/cells/{file}", get(cell))
        .route("/api/runs/{run}/samples", get(samples))
        .route("/api/runs/{run}/events", get(recent_events))
        .route("/runs/{run}/skip", post(actions::skip))
        .route("/runs/{run}/stop", post(actions::stop))
        .route("/runs/{run}/nodes", post(actions::node))
        .route("/runs/{run}/faults", post(actions::fault_of_run))
        .route("/compare", get(compare))
        .route("/api/compare", get(compare))
        .route("/host", get(host))
        .route("/api/host", get(host))
        .route("/host/faults", post(actions::fault_of_host))
        .route("/host/stop", post(actions::stop_service))
        .route("/studies", get(studies::list))
        .route("/api/studies", get(studies::list))
        .route("/studies/edit", get(studies::edit))
        .route("/api/studies/{file}", get(studies::one))
        .route("/studies/check", post(studies::check))
        .route("/studies/save", post(studies::save))
        .route("/addresses", post(actions::new_address))
        .route("/stream", get(events))
        .route("/pieces", get(pieces))
        .route("/metrics", get(prometheus))
        .route("/assets/{name}", get(asset))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        // The outermost layer: no request passes it by, not even one that finds no route.
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

async fn asset(Path(name): Path<String>) -> RouteResult {
    assets::asset(&name)
}

async fn not_found() -> RouteResult {
    Err(ActionRefusal::missing("there is no such page: docs/console.md lists what programs may ask for"))
}

#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    q: String,
}

async fn runs(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Query(SearchQuery { q }): Query<SearchQuery>,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let found = || shared.hub.list(None).into_iter().filter(|run| run.matches(&q)).collect::<Vec<_>>();
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Framed(page::runs(&shared.hub, &q))),
            || json_text(&found()),
        )
    })
    .await
}

#[derive(Deserialize)]
struct SpanQuery {
    span: Option<String>,
}

async fn run(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Path(name): Path<String>,
    Query(shown): Query<SpanQuery>,
) -> RouteResult {
    let span = shown.span.as_deref().and_then(ChartSpan::parse).unwrap_or_default();
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::view(
            asking.form,
            || {
                if shared.hub.is_about_to_begin(&name) {
                    return Ok(HtmlPage::Framed(page::about_to_begin(&name)));
                }
                with_run(shared, &name, |run| HtmlPage::Framed(page::run(&shared.hub, run, span)))
            },
            || json_text(&with_run(shared, &name, api::run)?),
        )
    })
    .await
}

fn rendered(shared: &ServerShared, name: &str) -> Result<String, ActionRefusal> {
    let loaded = load_run(shared, name)?;
    let explained = shared.hub.host.explain(&loaded);
    Ok(html::render_explained(&loaded, &explained))
}

async fn report(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Path(name): Path<String>,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Report(html::without_script(&rendered(shared, &name)?))),
            || Ok(underlay_report::export::json(&*load_run(shared, &name)?)),
        )
    })
    .await
}

/// The report with what was seen while it ran: a file that needs nothing but itself.
async fn export(State(shared): RouteState, Path(name): Path<String>) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let mut page = rendered(shared, &name)?;
        let appendix = with_run(shared, &name, page::appendix)?.into_string();
        let end = page.rfind("</main>").unwrap_or(page.len());
        page.insert_str(end, &appendix);
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        let disposition = format!("attachment; filename=\"{plain}.html\"");
        Ok(PageAnswer::report_file(page).with_header(header::CONTENT_DISPOSITION, &disposition))
    })
    .await
}

#[derive(Deserialize)]
struct LogQuery {
    file: Option<String>,
}

async fn logs(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Path(name): Path<String>,
    Query(query): Query<LogQuery>,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        run_directory(shared, &name)?;
        let file = query.file.as_deref();
        PageAnswer::view(
            asking.form,
            || page::logs(&shared.hub, &name, file).map(HtmlPage::Framed).map_err(ActionRefusal::failed),
            || match page::logs_as_json(&shared.hub, &name, file).map_err(ActionRefusal::failed)? {
                Some(value) => json_text(&value),
                None => Err(ActionRefusal::missing("that log is not there any more")),
            },
        )
    })
    .await
}

/// A cell's record, if the run's plan has it.
fn record_of(shared: &ServerShared, name: &str, file: &str) -> Result<RunRecord, ActionRefusal> {
    let (directory, head, planned) = with_run(shared, name, |run| {
        let planned = run.run.plan.iter().find(|planned| planned.file == file);
        (run.directory.clone(), run.run.clone(), planned.cloned())
    })?;
    let none = || ActionRefusal::missing(format!("there is no record {file:?} of {name} yet"));
    let planned = planned.ok_or_else(none)?;
    let record = RunDirectory::record(&directory, &head, &planned);
    record.map_err(|error| ActionRefusal::failed(error.to_string()))?.ok_or_else(none)
}

async fn cell(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Path((name, file)): Path<(String, String)>,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let record = record_of(shared, &name, &file)?;
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Framed(page::cell(&name, &file, &record))),
            || json_text(&record),
        )
    })
    .await
}

/// The names of `run=` in a query, which may be there twice.
fn two_runs(query: &[(String, String)]) -> Result<(String, String), ActionRefusal> {
    let names: Vec<&String> = query.iter().filter(|(key, _)| key == "run").map(|(_, name)| name).collect();
    match names.as_slice() {
        // The list has the newest first.
        [newer, older] => Ok(((*older).clone(), (*newer).clone())),
        [_] => Err(ActionRefusal::invalid("mark two runs to compare them (`?run=B&run=A`): one is marked")),
        others => Err(ActionRefusal::invalid(format!(
            "mark two runs to compare them (`?run=B&run=A`): {} are marked",
            others.len()
        ))),
    }
}

type ComparePairs = Query<Vec<(String, String)>>;

async fn compare(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Query(query): ComparePairs,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let (a, b) = two_runs(&query)?;
        let (loaded_a, loaded_b) = (load_run(shared, &a)?, load_run(shared, &b)?);
        let compared = AbComparison::new((&a, &loaded_a), (&b, &loaded_b));
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Report(html::without_script(&html::ab::render(&compared)))),
            || Ok(underlay_report::export::ab_json(&compared)),
        )
    })
    .await
}

async fn host(State(shared): RouteState, Extension(asking): RouteCaller) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Framed(page::host(&shared.hub))),
            || json_text(&api::host(&shared.hub)),
        )
    })
    .await
}

fn topics(query: &[(String, String)]) -> Vec<PageTopic> {
    let asked = query.iter().filter(|(key, _)| key == "topic");
    let mut topics: Vec<PageTopic> = asked.filter_map(|(_, topic)| PageTopic::parse(topic)).collect();
    topics.truncate(stream::MAX_TOPICS);
    topics
}

/// Pieces of pages have the forms of pages in them, which nobody needs who only reads.
fn check_shows_pages(asking: CallerInfo) -> Result<(), ActionRefusal> {
    match asking.caller {
        RequestCaller::Monitor => {
            Err(ActionRefusal::forbidden("this is a fragment of a page: monitors read /api/"))
        }
        RequestCaller::Session | RequestCaller::OwnProgram => Ok(()),
    }
}

async fn events(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Query(query): ComparePairs,
) -> RouteResult {
    check_shows_pages(asking)?;
    match topics(&query) {
        none if none.is_empty() => Err(ActionRefusal::invalid("expected ?topic=…")),
        topics => stream::open(&shared, topics),
    }
}

/// The same for who asks again and again.
async fn pieces(
    State(shared): RouteState,
    Extension(asking): RouteCaller,
    Query(query): ComparePairs,
) -> RouteResult {
    check_shows_pages(asking)?;
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let mut text = String::from("[");
        for topic in topics(&query) {
            let fragments = shared.drawn.fragments(&shared.hub, &topic).map_err(ActionRefusal::missing)?;
            let pieces: Vec<_> = fragments.iter().map(|piece| String::from_utf8_lossy(&piece.json)).collect();
            let topic = serde_json::Value::from(topic.to_string());
            let comma = if text.len() > 1 { "," } else { "" };
            text.push_str(&format!("{comma}{{\"topic\":{topic},\"pieces\":{{{}}}}}", pieces.join(",")));
        }
        text.push(']');
        Ok(PageAnswer::from_body("application/json", text))
    })
    .await
}

async fn prometheus(State(shared): RouteState) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, |shared| {
        Ok(PageAnswer::from_body("text/plain; version=0.0.4; charset=utf-8", metrics::text(&shared.hub)))
    })
    .await
}

#[derive(Deserialize)]
struct SinceQuery {
    #[serde(default)]
    since_s: f64,
}

async fn samples(
    State(shared): RouteState,
    Path(name): Path<String>,
    Query(query): Query<SinceQuery>,
) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::json(&with_run(shared, &name, |run| api::samples(run, query.since_s))?)
    })
    .await
}

async fn recent_events(State(shared): RouteState, Path(name): Path<String>) -> RouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::json(&with_run(shared, &name, api::events)?)
    })
    .await
}
