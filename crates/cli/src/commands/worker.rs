//! `underlay worker`: a part of a load that another host coordinates.

pub(crate) mod coordinate;
#[cfg(test)]
mod manifest_tests;
mod shared;

use std::io::{stdin, stdout};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_attach::ResourceRegistry;
use underlay_hosts::{
    CertificateFiles, ConnectionEvent, HostError, SharedToken, StoppedIn, TrustMethod, WorkerListener,
    WorkerServer,
};
use underlay_study::standstill::PauseMeter;
use underlay_sync::rate_limited_log::RateLimitedLog;
use underlay_systems::connect_allowlist::{self, MayConnect};
use underlay_workload::RunWindow;

use crate::arguments::{TrustArguments, WorkerArguments};
use crate::commands::live_service::ServiceReporter;
use crate::exit_codes::{ExitFailure, INTERRUPTED};
use crate::{output, service, signals};

pub(crate) fn worker(arguments: &WorkerArguments) -> Result<ExitCode, ExitFailure> {
    let idle_limit = arguments.end_when_idle.map(|seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            ExitFailure::Mistake(format!("--end-when-idle is {seconds}: expected a number of seconds"))
        })
    });
    let idle_limit = idle_limit.transpose()?;
    let may_connect = may_connect(arguments)?;
    let listener = match (&arguments.listen, trust(&arguments.trust)?) {
        (None, _) => None,
        (Some(address), Some(trust)) => Some(WorkerListener::open(address, &trust)?),
        (Some(_), None) => {
            return Err(ExitFailure::Mistake(
                "a worker that listens must know whom to obey: expected --token-file, \
                 or --authority, --certificate and --key"
                    .to_owned(),
            ));
        }
    };
    let registry = ResourceRegistry::open()?;
    let stop = signals::stop_flag()?;
    let place = match &listener {
        None => "by standard input and output".to_owned(),
        Some(listener) => match listener.address() {
            Ok(address) => format!("listens on {address}"),
            Err(error) => return Err(ExitFailure::Failed(error.to_string())),
        },
    };
    let reporter = ServiceReporter::begin("worker", place.clone(), "waits for a coordinator", &registry);
    let watch = || -> StoppedIn {
        let meter = PauseMeter::watch(Vec::new());
        Box::new(move |window: &RunWindow| meter.stopped_over(window))
    };
    let worker = WorkerServer::new(shared::connector(registry, may_connect)).watched_by(Box::new(watch));
    let report = || (worker.progress(), worker.is_busy());
    match listener {
        None => {
            // Frames end with no line break, at which the standard library's own output would wait.
            let copied = stdout().as_fd().try_clone_to_owned();
            let output =
                copied.map_err(|error| ExitFailure::Failed(format!("no standard output: {error}")))?;
            let output = std::fs::File::from(output);
            let serve = || worker.serve_streams(stdin(), output, &stop);
            let served = ServiceReporter::report_while(reporter.as_ref(), &report, serve);
            served.map_err(|error| ExitFailure::Failed(format!("the coordinator is gone: {error}")))?;
        }
        Some(listener) => {
            output::print(&format!("{place}; Ctrl-C ends it"));
            service::is_ready();
            let refusals = RateLimitedLog::default();
            let serve = || worker.serve(&listener, idle_limit, &stop, &|event| log(event, &refusals));
            ServiceReporter::report_while(reporter.as_ref(), &report, serve);
            service::is_stopping();
        }
    }
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn log(event: ConnectionEvent<'_>, refusals: &RateLimitedLog) {
    match event {
        ConnectionEvent::Refused { from, why: reason } => {
            if let Some(count) = refusals.count() {
                tracing::warn!(%from, count, "was refused: {reason}");
            }
        }
        ConnectionEvent::Coordinates { from } => tracing::info!(%from, "coordinates"),
        ConnectionEvent::Gone { from, error: None } => tracing::info!(%from, "is gone"),
        ConnectionEvent::Gone { from, error: Some(error) } => tracing::warn!(%from, "is gone: {error}"),
    }
}

/// The list of the command line, or else that of the environment.
fn may_connect(arguments: &WorkerArguments) -> Result<MayConnect, ExitFailure> {
    if !arguments.may_connect.is_empty() {
        return Ok(MayConnect::Listed(arguments.may_connect.clone()));
    }
    match std::env::var_os(connect_allowlist::VARIABLE).filter(|list| !list.is_empty()) {
        None => Ok(MayConnect::WithoutCredentials),
        Some(list) => connect_allowlist::parse(&list.to_string_lossy())
            .map(MayConnect::Listed)
            .map_err(|problem| ExitFailure::Mistake(format!("{}: {problem}", connect_allowlist::VARIABLE))),
    }
}

/// `None` where neither a token nor certificates are given.
fn trust(arguments: &TrustArguments) -> Result<Option<TrustMethod>, ExitFailure> {
    if let Some(file) = &arguments.token_file {
        return Ok(Some(TrustMethod::Token(SharedToken::read(file)?)));
    }
    let (Some(authority), Some(certificate), Some(key)) =
        (&arguments.authority, &arguments.certificate, &arguments.key)
    else {
        return Ok(None);
    };
    Ok(Some(TrustMethod::Certificates(CertificateFiles {
        authority: authority.clone(),
        certificate: certificate.clone(),
        key: key.clone(),
    })))
}

impl From<HostError> for ExitFailure {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Job(_) | HostError::Trust(_) => ExitFailure::Mistake(error.to_string()),
            _ => ExitFailure::Failed(error.to_string()),
        }
    }
}
