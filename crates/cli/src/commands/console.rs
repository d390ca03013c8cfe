//! `underlay console`, and the console of a run.

mod companion;
mod host;
mod in_time;
mod kept;
mod own_socket;
mod pools;
mod services;
mod started;

use std::io::{IsTerminal as _, stdout};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_attach::ResourceRegistry;
use underlay_console::{
    ADDRESS_VALID, AccessSecret, ConsoleError, ConsoleOptions, ConsoleServer, HostNames, ListenAddress,
};
use underlay_hosts::CertificateFiles;

use crate::arguments::{ConsoleArguments, ServedAt};
use crate::exit_codes::ExitFailure;
use crate::{output, service, signals};

use companion::ConsoleAddress;
pub(crate) use companion::{CompanionConsole, ConsoleStay};
use host::ThisHost;

const PORT: u16 = 7100;
const MAX_TOKEN_BYTES: u64 = 4096;
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn console(arguments: &ConsoleArguments) -> Result<ExitCode, ExitFailure> {
    let registry = ResourceRegistry::open()?;
    if arguments.new_address {
        return own_socket::new_address(
            registry.directory(),
            arguments.at.listen.map(|address| address.port()),
        );
    }
    // Before there are threads: it changes the environment.
    let passed = service::passed_listener().map_err(ExitFailure::Mistake)?;
    let stop = signals::stop_flag()?;
    let own_folder = registry.directory().to_owned();
    let host = Arc::new(ThisHost::new(registry)?);
    let RunsPlace { runs, named } = place_of(&arguments.runs)?;
    let opens_on = arguments.open.clone().or(named);
    if !runs.is_dir() && arguments.with.is_none() {
        output::say(format_args!(
            "note: there is no directory {} yet; runs appear here once there are any",
            runs.display()
        ));
    }
    let token = token_of(&arguments.at)?;
    let tls = certificates(&arguments.at).map(|certificates| certificates.for_listening()).transpose()?;
    let listen = |listen: ListenAddress| {
        let options = ConsoleOptions {
            listen,
            runs: runs.clone(),
            opens_on: opens_on.clone(),
            studies: arguments.studies.clone(),
            names: HostNames::new(arguments.at.name.iter().cloned()),
            token: token.clone(),
            own_folder: own_folder.clone(),
            tls: tls.clone(),
        };
        ConsoleServer::listen(options, Arc::clone(&host) as Arc<dyn underlay_console::ConsoleHost>)
    };
    let here = |port: u16| ListenAddress::At(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let console = match (passed, arguments.at.listen) {
        (Some(_), Some(_)) => {
            return Err(ExitFailure::Mistake(
                "the service manager already passes a socket to the console: omit --listen, or remove the socket unit".to_owned(),
            ));
        }
        (Some(passed), None) => listen(ListenAddress::Passed(passed))?,
        (None, Some(address)) => listen(ListenAddress::At(address))?,
        (None, None) => match listen(here(PORT)) {
            Ok(console) => console,
            // Another console may be there, or another user's program: who forwards or bookmarks the usual port must
            // know.
            Err(_) => {
                let fallback = listen(here(0))?;
                output::say(format!(
                    "note: port {PORT} is taken, so this console uses another one. A monitor that sends its token to port {PORT} reveals \
                     it to the program listening there"
                ));
                fallback
            }
        },
    };
    match arguments.with {
        Some(parent) => end_with(parent, &stop)?,
        None => service::is_ready(),
    }
    say_where(&console, arguments.with.is_some())?;
    console.run(&stop, &|| {
        output::say(
            "note: the console ends as soon as it has finished what it does to a storage, in 80 s at most; another Ctrl-C ends it at once, \
             and then `underlay fault DIR return` has to finish what was begun",
        );
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Where it is: an address opens it, so that only a terminal gets one. Output to anything else may be kept, and read by
/// others.
fn say_where(console: &ConsoleServer, is_beside_a_run: bool) -> Result<(), ExitFailure> {
    let socket = console.socket().to_owned();
    if is_beside_a_run {
        let file = console.new_address_in_file()?;
        output::print(&ConsoleAddress { listens: console.address(), file, socket }.to_line()?);
        return Ok(());
    }
    match stdout().is_terminal() {
        true => output::print(&address_in_words(&console.new_address()?)),
        false => {
            let begun = ConsoleAddress {
                listens: console.address(),
                file: console.new_address_in_file()?,
                socket: socket.clone(),
            };
            output::print(&begun.describe());
        }
    }
    output::print(&format!("programs curl --unix-socket {} http://localhost/api/runs", socket.display()));
    Ok(())
}

fn address_in_words(address: &str) -> String {
    format!(
        "console  {address}\n         one session, within {}; `underlay console --new-address` prints the next",
        valid_for()
    )
}

fn valid_for() -> String {
    format!("{} minutes", ADDRESS_VALID.as_secs() / 60)
}

/// Raises the flag when the process that started this one ends.
fn end_with(parent: u32, stop: &Arc<AtomicBool>) -> Result<(), ExitFailure> {
    let stop = Arc::clone(stop);
    let ends_with = move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(POLL);
        }
        stop.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("with".to_owned()).spawn(ends_with).map(drop).map_err(|error| {
        ExitFailure::Failed(format!("can't start the thread that ends the console: {error}"))
    })
}

struct RunsPlace {
    /// The directory whose runs are shown.
    runs: PathBuf,
    /// The run that was named.
    named: Option<String>,
}

/// Of a run that was named, its runs are those of the directory above.
fn place_of(named: &Path) -> Result<RunsPlace, ExitFailure> {
    let absolute = std::path::absolute(named)
        .map_err(|error| ExitFailure::Mistake(format!("cannot find {}: {error}", named.display())))?;
    let directory = super::which_run::run_directory(&absolute);
    if directory.exists() && !directory.is_dir() {
        return Err(ExitFailure::Mistake(format!("{} is no directory of runs", named.display())));
    }
    match (directory.join("run.json").is_file(), directory.parent()) {
        (true, Some(above)) => {
            let name = directory.file_name().map(|name| name.to_string_lossy().into_owned());
            Ok(RunsPlace { runs: above.to_owned(), named: name })
        }
        _ => Ok(RunsPlace { runs: directory, named: None }),
    }
}

/// For TLS; `None` where none are given.
fn certificates(endpoint: &ServedAt) -> Option<CertificateFiles> {
    let (authority, certificate, key) =
        (endpoint.authority.clone()?, endpoint.certificate.clone()?, endpoint.key.clone()?);
    Some(CertificateFiles { authority, certificate, key })
}

/// That of monitors, where there is one.
fn token_of(endpoint: &ServedAt) -> Result<Option<AccessSecret>, ExitFailure> {
    let Some(file) = &endpoint.token_file else { return Ok(None) };
    let mistake =
        |problem: String| ExitFailure::Mistake(format!("--token-file {}: {problem}", file.display()));
    let text =
        underlay_files::read_secret(file, MAX_TOKEN_BYTES).map_err(|error| mistake(error.to_string()))?;
    AccessSecret::parse(text.trim()).map(Some).map_err(mistake)
}

impl From<ConsoleError> for ExitFailure {
    fn from(error: ConsoleError) -> Self {
        match error {
            ConsoleError::Mistake(text) => ExitFailure::Mistake(text),
            ConsoleError::Failed(text) => ExitFailure::Failed(text),
        }
    }
}
