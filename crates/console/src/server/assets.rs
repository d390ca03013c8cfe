//! What pages need beside themselves: all of it is in the program.

use axum::http::{HeaderValue, StatusCode, header};
use underlay_report::html::time_chart;

use super::answer::{self, Answer};

pub(super) fn asset(name: &str) -> Answer {
    let (kind, text) = match name {
        "report.css" => ("text/css", time_chart::STYLE),
        "console.css" => ("text/css", include_str!("../assets/console.css")),
        "console.js" => ("text/javascript", include_str!("../assets/console.js")),
        "worker.js" => ("text/javascript", include_str!("../assets/worker.js")),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return answer::problem(StatusCode::NOT_FOUND, "There is no such file."),
    };
    let mut answer = answer::of(StatusCode::OK, kind, text);
    // Kept while the page is open, and asked for again after an upgrade.
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=60"));
    answer
}
