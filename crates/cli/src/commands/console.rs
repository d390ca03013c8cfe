//! `underlay console`, and the console of a run.

mod beside;
mod host;
mod kept;
mod pools;
mod services;
mod started;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_attach::Registry;
use underlay_console::{Console, ConsoleError, Names, Options, Secret};
use underlay_hosts::Certificates;

use crate::arguments::{ConsoleArguments, ServedAt};
use crate::exit_codes::Failure;
use crate::{output, signals};

pub(crate) use beside::{Beside, Stay};
use host::ThisHost;

const PORT: u16 = 7100;
const MAX_TOKEN_BYTES: u64 = 4096;
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn console(arguments: &ConsoleArguments) -> Result<ExitCode, Failure> {
    let stop = signals::stop_flag()?;
    let host = Arc::new(ThisHost::new(Registry::open()?)?);
    let Place { runs, named } = place_of(&arguments.runs)?;
    let opens_on = arguments.open.clone().or(named);
    if !runs.is_dir() && arguments.with.is_none() {
        output::say(format_args!(
            "note: there is no directory {} yet; its runs are shown as soon as there are some",
            runs.display()
        ));
    }
    let token = token_of(&arguments.at)?;
    let tls = certificates(&arguments.at).map(|certificates| certificates.for_listening()).transpose()?;
    let listen = |listen: SocketAddr| {
        let options = Options {
            listen,
            runs: runs.clone(),
            opens_on: opens_on.clone(),
            studies: arguments.studies.clone(),
            names: Names::new(arguments.at.name.iter().cloned()),
            token: token.clone(),
            on_used: Box::new(|next| output::print(&format!("for another browser  {next}"))),
            tls: tls.clone(),
        };
        Console::listen(options, Arc::clone(&host) as Arc<dyn underlay_console::Host>)
    };
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let console = match arguments.at.listen {
        Some(address) => listen(address)?,
        None => match listen(usual) {
            Ok(console) => console,
            // Another console may be there, or another user's program: who forwards or bookmarks the usual port must know.
            Err(_) => {
                let elsewhere = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
                output::say(format!(
                    "note: port {PORT} is taken, so this console is at another one; never send its token to port {PORT}"
                ));
                elsewhere
            }
        },
    };
    if let Some(parent) = arguments.with {
        let stop = Arc::clone(&stop);
        let ends_with = move || {
            while std::os::unix::process::parent_id() == parent {
                std::thread::sleep(POLL);
            }
            stop.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new()
            .name("with".to_owned())
            .spawn(ends_with)
            .map_err(|error| Failure::Failed(format!("there is no thread to end the console by: {error}")))?;
    }
    // Whoever brings a token knows it, and a terminal's history need not.
    output::print(&format!("console  {}", console.url()));
    console.run(&stop)?;
    Ok(ExitCode::SUCCESS)
}

struct Place {
    /// The directory whose runs are shown.
    runs: PathBuf,
    /// The run that was named.
    named: Option<String>,
}

/// Of a run that was named, its runs are those of the directory above.
fn place_of(named: &Path) -> Result<Place, Failure> {
    let absolute = std::path::absolute(named)
        .map_err(|error| Failure::Mistake(format!("cannot find {}: {error}", named.display())))?;
    let directory = super::which_run::run_directory(&absolute);
    if directory.exists() && !directory.is_dir() {
        return Err(Failure::Mistake(format!("{} is no directory of runs", named.display())));
    }
    match (directory.join("run.json").is_file(), directory.parent()) {
        (true, Some(above)) => {
            let name = directory.file_name().map(|name| name.to_string_lossy().into_owned());
            Ok(Place { runs: above.to_owned(), named: name })
        }
        _ => Ok(Place { runs: directory, named: None }),
    }
}

/// For TLS; `None` where none are given.
fn certificates(at: &ServedAt) -> Option<Certificates> {
    let (authority, certificate, key) = (at.authority.clone()?, at.certificate.clone()?, at.key.clone()?);
    Some(Certificates { authority, certificate, key })
}

/// The user's own, where they have one.
fn token_of(at: &ServedAt) -> Result<Option<Secret>, Failure> {
    let Some(file) = &at.token_file else { return Ok(None) };
    let mistake = |problem: String| Failure::Mistake(format!("--token-file {}: {problem}", file.display()));
    let text =
        underlay_files::read_secret(file, MAX_TOKEN_BYTES).map_err(|error| mistake(error.to_string()))?;
    Secret::of(text.trim()).map(Some).map_err(mistake)
}

impl From<ConsoleError> for Failure {
    fn from(error: ConsoleError) -> Self {
        match error {
            ConsoleError::Mistake(text) => Failure::Mistake(text),
            ConsoleError::Failed(text) => Failure::Failed(text),
        }
    }
}
