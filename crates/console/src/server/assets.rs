//! The pages' assets: all of them are in the program.

use axum::http::header;
use underlay_report::html::time_chart;

use super::answer::{ActionRefusal, PageAnswer};

pub(super) fn asset(name: &str) -> Result<PageAnswer, ActionRefusal> {
    let (kind, text) = match name {
        "report.css" => ("text/css", time_chart::STYLE),
        "console.css" => ("text/css", include_str!("../assets/console.css")),
        "console.js" => ("text/javascript", include_str!("../assets/console.js")),
        "worker.js" => ("text/javascript", include_str!("../assets/worker.js")),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return Err(ActionRefusal::missing("there is no such file")),
    };
    // Kept while the page is open, and asked for again after an upgrade.
    Ok(PageAnswer::from_body(kind, text).with_header(header::CACHE_CONTROL, "private, max-age=60"))
}
