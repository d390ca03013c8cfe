//! A coordinator's connection to one worker.

use std::fmt;
use std::io::Read as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openssl::ssl::SslContext;

use crate::HostError;
use crate::clock_offset::ClockOffset;
use crate::frame::{FrameError, FrameReader, MAX_BYTES, send};
use crate::job::RemoteJob;
use crate::message::{
    CoordinatorRequest, MeasuredPart, PREFACE, ProgressReport, WorkerAnswer, WorkerWelcome,
};
use crate::ssh::{SshHost, SshProcess};
use crate::stream::{DeadlineSocket, PeerStream};
use crate::trust::TrustMethod;

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Over ssh, this includes connecting, logging in and starting a program.
const SSH_TIME: Duration = Duration::from_secs(30);
/// Preparing connects to a system, which takes longer than other answers.
const MAX_PREPARE: Duration = Duration::from_secs(200);
/// How often it checks whether it should stop while it waits for an answer.
const TICK: Duration = Duration::from_millis(50);
/// A welcome is short.
const MAX_WELCOME_BYTES: usize = 4 << 10;
/// The number of round trips for reading a worker's clock. The shortest counts.
const CLOCK_TRIPS: u32 = 16;

/// How to reach a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAddress {
    /// It listens at `host:port`.
    Listening(String),
    /// It is started over ssh.
    Ssh(SshHost),
}

impl HostAddress {
    /// `host:port`, or `ssh:user@host`, where `program` is the path of `underlay` there.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str, program: &str) -> Result<Self, HostError> {
        let text = text.trim();
        if let Some(destination) = text.strip_prefix("ssh:") {
            return SshHost::new(destination, program).map(HostAddress::Ssh);
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(1..) => Ok(HostAddress::Listening(text.to_owned())),
            _ => {
                Err(HostError::Job(format!("'{text}' is not a worker: expected HOST:PORT or ssh:USER@HOST")))
            }
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostAddress::Listening(address) => f.write_str(address),
            HostAddress::Ssh(host) => write!(f, "ssh:{}", host.destination()),
        }
    }
}

/// Why a worker can't be used.
enum WorkerRefusal {
    /// It did not say anything.
    Unheard(String),
    /// Its answer was not acceptable.
    Heard(String),
}

pub(crate) struct RemoteHost {
    pub name: String,
    pub cores: u32,
    stream: PeerStream,
    reader: FrameReader,
    /// The start of our clock.
    origin: Instant,
    patience: Duration,
    /// Dropped last, because ssh ends once its stream is closed.
    started: Option<SshProcess>,
}

impl RemoteHost {
    /// Connects. `trust` is for workers that listen.
    pub(crate) fn connect(
        address: &HostAddress,
        trust: Option<&(TrustMethod, SslContext)>,
        origin: Instant,
        patience: Duration,
    ) -> Result<RemoteHost, HostError> {
        let name = address.to_string();
        let (stream, started, hint) = match (address, trust) {
            (HostAddress::Ssh(host), _) => {
                let (stream, started) = host.start().map_err(|error| HostError::Unreachable {
                    worker: name.clone(),
                    problem: format!("can't start ssh: {error}"),
                })?;
                let wire = DeadlineSocket::unix(stream, Instant::now() + SSH_TIME);
                (
                    PeerStream::Plain(wire),
                    Some(started),
                    "can ssh log in there without a password, and is underlay there?",
                )
            }
            (HostAddress::Listening(address), Some((trust, context))) => {
                (reach(address, trust, context)?, None, trust.hint())
            }
            (HostAddress::Listening(_), None) => {
                return Err(HostError::Trust(format!(
                    "worker {name} listens on a network: give a token or certificates to authenticate with"
                )));
            }
        };
        let mut host =
            RemoteHost { name, cores: 0, stream, reader: FrameReader::new(), origin, patience, started };
        match host.take_welcome() {
            Ok(()) => Ok(host),
            // It has said nothing itself, so what ssh printed, or else a guess, is all there is.
            Err(WorkerRefusal::Unheard(problem)) => {
                let reason = host.last_words().unwrap_or_else(|| hint.to_owned());
                Err(HostError::Refused { worker: host.name, problem: format!("{problem}; {reason}") })
            }
            Err(WorkerRefusal::Heard(problem)) => Err(HostError::Refused { worker: host.name, problem }),
        }
    }

    /// Receives a worker's first message. With certificates, this is also where a worker that doesn't accept ours
    /// reports it.
    fn take_welcome(&mut self) -> Result<(), WorkerRefusal> {
        let unheard = |error: FrameError| {
            WorkerRefusal::Unheard(match error.is_timeout() {
                true => "it said nothing".to_owned(),
                false => error.to_string(),
            })
        };
        let mut preface = [0; PREFACE.len()];
        self.stream.read_exact(&mut preface).map_err(|error| unheard(error.into()))?;
        if preface != PREFACE {
            let text = String::from_utf8_lossy(&preface);
            return Err(WorkerRefusal::Heard(format!(
                "it sent {text:?} first: expected a worker of the same version, and no other output"
            )));
        }
        let welcome: WorkerWelcome =
            self.reader.receive(&mut self.stream, MAX_WELCOME_BYTES).map_err(unheard)?;
        let version = env!("CARGO_PKG_VERSION");
        if welcome.version != version {
            let problem =
                format!("it is version {}, and this is {version}: expected the same", welcome.version);
            return Err(WorkerRefusal::Heard(problem));
        }
        if welcome.is_taken {
            let problem = "it is working for another coordinator: wait until that has finished";
            return Err(WorkerRefusal::Heard(problem.to_owned()));
        }
        self.cores = welcome.cores;
        Ok(())
    }

    fn last_words(&self) -> Option<String> {
        self.started.as_ref().and_then(SshProcess::last_words)
    }

    fn lost(&self, error: &FrameError) -> HostError {
        let mut problem = match error.is_timeout() {
            true => format!("it was silent for {} s", self.patience.as_secs_f64()),
            false => error.to_string(),
        };
        if let Some(words) = self.last_words() {
            problem = format!("{problem}; its last words: {words}");
        }
        HostError::Lost { worker: self.name.clone(), problem }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn ask(
        &mut self,
        request: &CoordinatorRequest,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<WorkerAnswer, HostError> {
        self.stream.wait_at_most(limit);
        send(&mut self.stream, request).map_err(|error| self.lost(&error))?;
        let sent = Instant::now();
        loop {
            // In short waits, to notice `stop`. A timeout loses nothing: the reader keeps what has arrived.
            self.stream.wait_at_most(TICK);
            match self.reader.receive(&mut self.stream, MAX_BYTES) {
                Ok(WorkerAnswer::Failed(problem)) => {
                    return Err(HostError::Failed { worker: self.name.clone(), problem });
                }
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_timeout() && sent.elapsed() < limit => {
                    if stop.load(Ordering::Relaxed) {
                        return Err(HostError::Stopped);
                    }
                }
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    fn confused(&self, answer: &WorkerAnswer) -> HostError {
        let problem = format!("it answered with {} instead", answer.describe());
        HostError::Lost { worker: self.name.clone(), problem }
    }

    fn have_done(
        &mut self,
        request: &CoordinatorRequest,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(), HostError> {
        match self.ask(request, limit, stop)? {
            WorkerAnswer::Done => Ok(()),
            other => Err(self.confused(&other)),
        }
    }

    /// Makes it connect to the system and wait.
    pub(crate) fn prepare(&mut self, part: &RemoteJob, stop: &AtomicBool) -> Result<(), HostError> {
        self.have_done(&CoordinatorRequest::Prepare(Box::new(part.clone())), MAX_PREPARE, stop)
    }

    /// Makes it start at an instant of its own clock.
    pub(crate) fn start(&mut self, at_ns: u64, stop: &AtomicBool) -> Result<(), HostError> {
        self.have_done(&CoordinatorRequest::Start { at_ns }, self.patience, stop)
    }

    /// Measures the offset of its clock by one round trip.
    pub(crate) fn look_at_clock(&mut self, stop: &AtomicBool) -> Result<ClockOffset, HostError> {
        let sent_ns = self.now_ns();
        match self.ask(&CoordinatorRequest::Time, self.patience, stop)? {
            WorkerAnswer::Time { now_ns } => Ok(ClockOffset::new(sent_ns, now_ns, self.now_ns())),
            other => Err(self.confused(&other)),
        }
    }

    /// Measures the offset of its clock by several round trips.
    pub(crate) fn clock_offset(&mut self, stop: &AtomicBool) -> Result<ClockOffset, HostError> {
        let trips: Vec<ClockOffset> =
            (0..CLOCK_TRIPS).map(|_| self.look_at_clock(stop)).collect::<Result<_, _>>()?;
        Ok(ClockOffset::best(trips).expect("there were trips"))
    }

    /// Asks for its progress.
    pub(crate) fn report(&mut self, stop: &AtomicBool) -> Result<ProgressReport, HostError> {
        match self.ask(&CoordinatorRequest::Report, self.patience, stop)? {
            WorkerAnswer::Report(report) => Ok(report),
            other => Err(self.confused(&other)),
        }
    }

    /// Asks for its results.
    pub(crate) fn collect(&mut self, stop: &AtomicBool) -> Result<MeasuredPart, HostError> {
        match self.ask(&CoordinatorRequest::Collect, self.patience, stop)? {
            WorkerAnswer::Measured(part) => Ok(*part),
            other => Err(self.confused(&other)),
        }
    }

    /// Stops its run. It may be gone already.
    pub(crate) fn end_run(&mut self) {
        // Not with the caller's flag: that is set already, and would end the wait for the answer.
        let _ = self.have_done(&CoordinatorRequest::Stop, self.patience, &AtomicBool::new(false));
    }
}

/// Connects to a worker that listens, including the handshake.
fn reach(address: &str, trust: &TrustMethod, context: &SslContext) -> Result<PeerStream, HostError> {
    let unreachable = |problem: String| HostError::Unreachable { worker: address.to_owned(), problem };
    let refused = |error: std::io::Error| HostError::Refused {
        worker: address.to_owned(),
        problem: match error.kind() {
            std::io::ErrorKind::TimedOut => format!("{error}; is it a worker, and does it run?"),
            _ => format!("{error}; {}", trust.hint()),
        },
    };
    let mut problem = "its name has no address".to_owned();
    for socket_address in address.to_socket_addrs().map_err(|error| unreachable(error.to_string()))? {
        match TcpStream::connect_timeout(&socket_address, CONNECT_TIME) {
            Ok(stream) => {
                let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
                // Certificates and `IpAddr` have IPv6 addresses without the brackets.
                let name = name.trim_matches(['[', ']']);
                let ssl = trust.handshake(context, name).map_err(|error| refused(error.into()))?;
                let wire = DeadlineSocket::tcp(stream, Instant::now() + CONNECT_TIME)
                    .map_err(|error| unreachable(error.to_string()))?;
                return PeerStream::connect(ssl, wire).map_err(refused);
            }
            Err(error) => problem = error.to_string(),
        }
    }
    Err(unreachable(format!("{problem}; is `underlay worker --listen` running there?")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_go_by_ssh() {
        let parse = |text: &str| HostAddress::parse(text, "underlay").map_err(|error| error.to_string());
        for right in ["a:7400", "10.0.0.1:1", "[::1]:7400", "worker-0.workers:65535"] {
            assert_eq!(parse(right).unwrap(), HostAddress::Listening(right.to_owned()));
            assert_eq!(parse(right).unwrap().to_string(), right);
        }
        assert_eq!(parse(" ssh:me@host ").unwrap().to_string(), "ssh:me@host");
        for wrong in ["", "a", "a:", ":7400", "a:0", "a:65536", "a:b"] {
            assert_eq!(
                parse(wrong).unwrap_err(),
                format!("'{wrong}' is not a worker: expected HOST:PORT or ssh:USER@HOST")
            );
        }
        assert!(parse("ssh:-v").unwrap_err().contains("is not a host"));
    }
}
