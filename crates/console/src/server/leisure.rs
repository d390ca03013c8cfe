//! Work that takes its time.

use std::sync::Arc;

use axum::http::StatusCode;

use super::Shared;
use super::answer::{self, Answer};

/// Does what reads files or draws on a thread where it may take its time.
pub(super) async fn at_leisure(
    shared: Arc<Shared>,
    act: impl FnOnce(&Shared) -> Result<Answer, String> + Send + 'static,
) -> Answer {
    match tokio::task::spawn_blocking(move || act(&shared)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(problem)) => answer::problem(StatusCode::NOT_FOUND, &problem),
        Err(_) => answer::problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "This is a bug in underlay: its terminal has more about it.",
        ),
    }
}
