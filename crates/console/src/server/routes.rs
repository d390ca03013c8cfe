//! Which page an address has. Whatever changes anything is a POST.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::Deserialize;
use underlay_record::RunRecord;
use underlay_report::ab::AbComparison;
use underlay_report::{RunDirectory, html};

use super::answer::{self, Answer};
use super::guard::guard;
use super::leisure::at_leisure;
use super::{Shared, actions, assets, stream};
use crate::page::{self, Span, Topic};
use crate::{api, metrics};

/// Of a form: a study is its largest part.
const MAX_FORM_BYTES: usize = 6 << 20;

type Of = State<Arc<Shared>>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(runs))
        .route("/runs/{run}", get(run))
        .route("/runs/{run}/report", get(report))
        .route("/runs/{run}/export", get(export))
        .route("/runs/{run}/logs", get(logs))
        .route("/runs/{run}/cells/{file}", get(cell))
        .route("/runs/{run}/skip", post(actions::skip))
        .route("/runs/{run}/stop", post(actions::stop))
        .route("/runs/{run}/nodes", post(actions::node))
        .route("/runs/{run}/faults", post(actions::fault_of_run))
        .route("/compare", get(compare))
        .route("/host", get(host))
        .route("/host/faults", post(actions::fault_of_host))
        .route("/host/stop", post(actions::stop_service))
        .route("/studies", get(studies))
        .route("/studies/edit", get(edit))
        .route("/studies/check", post(actions::check))
        .route("/studies/save", post(actions::save))
        .route("/stream", get(events))
        .route("/pieces", get(pieces))
        .route("/metrics", get(prometheus))
        .route("/api/runs", get(api_runs))
        .route("/api/runs/{run}", get(api_run))
        .route("/api/runs/{run}/samples", get(api_samples))
        .route("/api/runs/{run}/events", get(api_events))
        .route("/api/runs/{run}/report", get(api_report))
        .route("/api/runs/{run}/cells/{file}", get(api_cell))
        .route("/api/compare", get(api_compare))
        .route("/api/host", get(api_host))
        .route("/assets/{name}", get(asset))
        .fallback(nothing)
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

async fn asset(Path(name): Path<String>) -> Answer {
    assets::asset(&name)
}

async fn nothing() -> Answer {
    answer::problem(StatusCode::NOT_FOUND, "There is no such page.")
}

#[derive(Deserialize)]
struct Words {
    #[serde(default)]
    q: String,
}

async fn runs(State(shared): Of, Query(Words { q }): Query<Words>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::html(page::runs(&shared.hub, &q)))).await
}

#[derive(Deserialize)]
struct Shown {
    span: Option<String>,
}

async fn run(State(shared): Of, Path(name): Path<String>, Query(shown): Query<Shown>) -> Answer {
    let span = shown.span.as_deref().and_then(Span::of).unwrap_or_default();
    at_leisure(shared, move |shared| {
        if shared.hub.is_about_to_begin(&name) {
            return Ok(answer::html(page::about_to_begin(&name)));
        }
        shared.hub.with(&name, |run| answer::html(page::run(&shared.hub, run, span)))
    })
    .await
}

fn rendered(shared: &Shared, name: &str) -> Result<String, String> {
    let loaded = shared.hub.load(name)?;
    let explained = shared.hub.host.explain(&loaded);
    Ok(html::render_explained(&loaded, &explained))
}

async fn report(State(shared): Of, Path(name): Path<String>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::report(html::without_script(&rendered(shared, &name)?))))
        .await
}

/// The report with what was seen while it ran: a file that needs nothing but itself.
async fn export(State(shared): Of, Path(name): Path<String>) -> Answer {
    at_leisure(shared, move |shared| {
        let mut page = rendered(shared, &name)?;
        let appendix = shared.hub.with(&name, page::appendix)?.into_string();
        let end = page.rfind("</main>").unwrap_or(page.len());
        page.insert_str(end, &appendix);
        let mut answer = answer::report(page);
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{plain}.html\"")) {
            answer.headers_mut().insert(header::CONTENT_DISPOSITION, value);
        }
        Ok(answer)
    })
    .await
}

#[derive(Deserialize)]
struct Which {
    file: Option<String>,
}

async fn logs(State(shared): Of, Path(name): Path<String>, Query(which): Query<Which>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::html(page::logs(&shared.hub, &name, which.file.as_deref())?)))
        .await
}

/// A cell's record, if the run's plan has it.
fn record_of(shared: &Shared, name: &str, file: &str) -> Result<RunRecord, String> {
    let (directory, head, planned) = shared.hub.with(name, |run| {
        let planned = run.run.plan.iter().find(|planned| planned.file == file);
        (run.directory.clone(), run.run.clone(), planned.cloned())
    })?;
    let none = || format!("there is no record {file:?} of {name} yet");
    let planned = planned.ok_or_else(none)?;
    RunDirectory::record(&directory, &head, &planned).map_err(|error| error.to_string())?.ok_or_else(none)
}

async fn cell(State(shared): Of, Path((name, file)): Path<(String, String)>) -> Answer {
    at_leisure(shared, move |shared| {
        Ok(answer::html(page::cell(&name, &file, &record_of(shared, &name, &file)?)))
    })
    .await
}

async fn api_cell(State(shared): Of, Path((name, file)): Path<(String, String)>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::json(&record_of(shared, &name, &file)?))).await
}

/// The names of `run=` in a query, which may be there twice.
fn two_runs(query: &[(String, String)]) -> Result<(String, String), String> {
    let names: Vec<&String> = query.iter().filter(|(key, _)| key == "run").map(|(_, name)| name).collect();
    match names.as_slice() {
        // The list has the newest first.
        [newer, older] => Ok(((*older).clone(), (*newer).clone())),
        [_] => Err("mark two runs to compare them: one is marked".to_owned()),
        others => Err(format!("mark two runs to compare them: {} are marked", others.len())),
    }
}

type Pairs = Query<Vec<(String, String)>>;

async fn compare(State(shared): Of, Query(query): Pairs) -> Answer {
    at_leisure(shared, move |shared| {
        let (a, b) = two_runs(&query)?;
        let (loaded_a, loaded_b) = (shared.hub.load(&a)?, shared.hub.load(&b)?);
        let compared = AbComparison::of((&a, &loaded_a), (&b, &loaded_b));
        Ok(answer::report(html::without_script(&html::ab::render(&compared))))
    })
    .await
}

async fn api_compare(State(shared): Of, Query(query): Pairs) -> Answer {
    at_leisure(shared, move |shared| {
        let (a, b) = two_runs(&query)?;
        let (loaded_a, loaded_b) = (shared.hub.load(&a)?, shared.hub.load(&b)?);
        let compared = AbComparison::of((&a, &loaded_a), (&b, &loaded_b));
        Ok(answer::of(StatusCode::OK, "application/json", underlay_report::export::ab_json(&compared)))
    })
    .await
}

async fn host(State(shared): Of) -> Answer {
    at_leisure(shared, |shared| Ok(answer::html(page::host(&shared.hub)))).await
}

async fn studies(State(shared): Of) -> Answer {
    at_leisure(shared, |shared| Ok(answer::html(page::studies(&shared.hub)))).await
}

async fn edit(State(shared): Of, Query(which): Query<Which>) -> Answer {
    at_leisure(shared, move |shared| {
        let file = which.file.unwrap_or_default();
        let text = match file.is_empty() {
            true => None,
            false => Some(actions::read_study(&shared.hub.studies, &file)?),
        };
        let read = text.as_deref().map(actions::mark_of).unwrap_or_default();
        Ok(answer::html(page::editor(&shared.hub, &file, text.as_deref(), &read, None)))
    })
    .await
}

fn topics(query: &[(String, String)]) -> Vec<Topic> {
    let asked = query.iter().filter(|(key, _)| key == "topic");
    let mut topics: Vec<Topic> = asked.filter_map(|(_, topic)| Topic::parse(topic)).collect();
    topics.truncate(stream::MAX_TOPICS);
    topics
}

async fn events(State(shared): Of, Query(query): Pairs) -> Answer {
    match topics(&query) {
        none if none.is_empty() => answer::plain(StatusCode::BAD_REQUEST, "expected ?topic=…"),
        topics => stream::open(&shared, topics),
    }
}

/// The same for who asks again and again.
async fn pieces(State(shared): Of, Query(query): Pairs) -> Answer {
    at_leisure(shared, move |shared| {
        let mut text = String::from("[");
        for topic in topics(&query) {
            let fragments = shared.drawn.fragments(&shared.hub, &topic)?;
            let pieces: Vec<_> = fragments.iter().map(|piece| String::from_utf8_lossy(&piece.json)).collect();
            let topic = serde_json::Value::from(topic.to_string());
            let comma = if text.len() > 1 { "," } else { "" };
            text.push_str(&format!("{comma}{{\"topic\":{topic},\"pieces\":{{{}}}}}", pieces.join(",")));
        }
        text.push(']');
        Ok(answer::of(StatusCode::OK, "application/json", text))
    })
    .await
}

async fn prometheus(State(shared): Of) -> Answer {
    at_leisure(shared, |shared| {
        Ok(answer::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics::text(&shared.hub)))
    })
    .await
}

async fn api_runs(State(shared): Of, Query(Words { q }): Query<Words>) -> Answer {
    at_leisure(shared, move |shared| {
        let found: Vec<_> = shared.hub.list(None).into_iter().filter(|run| run.matches(&q)).collect();
        Ok(answer::json(&found))
    })
    .await
}

async fn api_run(State(shared): Of, Path(name): Path<String>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::json(&shared.hub.with(&name, api::run)?))).await
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    since_s: f64,
}

async fn api_samples(State(shared): Of, Path(name): Path<String>, Query(since): Query<Since>) -> Answer {
    at_leisure(shared, move |shared| {
        Ok(answer::json(&shared.hub.with(&name, |run| api::samples(run, since.since_s))?))
    })
    .await
}

async fn api_events(State(shared): Of, Path(name): Path<String>) -> Answer {
    at_leisure(shared, move |shared| Ok(answer::json(&shared.hub.with(&name, api::events)?))).await
}

async fn api_report(State(shared): Of, Path(name): Path<String>) -> Answer {
    at_leisure(shared, move |shared| {
        let text = underlay_report::export::json(&*shared.hub.load(&name)?);
        Ok(answer::of(StatusCode::OK, "application/json", text))
    })
    .await
}

async fn api_host(State(shared): Of) -> Answer {
    at_leisure(shared, |shared| Ok(answer::json(&api::host(&shared.hub)))).await
}
