//! An S3 store that is not started here: reached through a door of Spark's network, asked before anything is started
//! whether jobs can use it, and left as it was found.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NAME;
use super::config::SparkConfig;
use super::endpoint::{self, StoreEndpoint};
use super::environment::without_variables_of_the_user;
use crate::ceph::S3Keys;
use crate::credentials::random_password;
use crate::left_elsewhere::{LedgerEntry, RemoteLedger};
use crate::network_namespace::NetworkNamespace;
use crate::port_forward::{ADDRESS, ForwardTarget, NetworkDoor};
use crate::system::{SystemError, SystemSettings};

const PROGRAM: &str = "store.py";
/// Up to five requests of ten seconds each, and some for Python and their connections.
const CHECK_LIMIT: Duration = Duration::from_secs(70);
/// Objects are deleted one by one: thousands, from a store that may be far away.
const CLEAR_LIMIT: Duration = Duration::from_secs(3600);
const END_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// A store that answers.
pub(super) struct ExternalStore {
    endpoint: StoreEndpoint,
    bucket: String,
    /// Of the keys of this run's objects: nobody else's begin like that.
    prefix: String,
    region: String,
    path_style: bool,
    signs_v2: bool,
    keys: S3Keys,
    token: Option<String>,
    variables: String,
    door: NetworkDoor,
    namespace: Arc<NetworkNamespace>,
    python: PathBuf,
    /// Where the sources are.
    jobs: PathBuf,
    is_clear: bool,
    entry: LedgerEntry,
}

impl std::fmt::Debug for ExternalStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ExternalStore").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl ExternalStore {
    /// Opens a door of `namespace` to the store of `config`, and asks the store what jobs will ask.
    ///
    /// # Errors
    /// When a key is missing, the store may not be connected to, does not answer, or refuses.
    pub(super) fn reach(
        (config, endpoint): (&SparkConfig, &StoreEndpoint),
        settings: &SystemSettings,
        variable: impl Fn(&str) -> Option<String>,
        namespace: &Arc<NetworkNamespace>,
        (python, jobs): (&Path, &Path),
        ledger: &RemoteLedger,
    ) -> Result<ExternalStore, SystemError> {
        let failed = |problem: String| SystemError::starting(NAME, problem);
        if settings.slow_motion > 1.0 {
            return Err(failed(format!(
                "the store at {} goes its own pace and can't be slowed down: set `time = 1` in [scale]",
                endpoint.show()
            )));
        }
        let names = [&config.access_key_variable, &config.secret_key_variable]
            .map(|name| name.as_deref().unwrap_or_default());
        let (keys, token) = endpoint::keys(names, config.session_token_variable.as_deref(), variable)?;
        let allowed = settings.may_connect.check(NAME, ("endpoint", &[endpoint.place()]), Some(names))?;
        let target = match allowed {
            Some((_, addresses)) => ForwardTarget::Addresses(addresses),
            None => ForwardTarget::Name(endpoint.host.clone(), endpoint.port),
        };
        let door = NetworkDoor::open(namespace, endpoint.port, target)
            .map_err(|error| failed(format!("can't connect its network to {}: {error}", endpoint.show())))?;
        let random =
            random_password().map_err(|error| failed(format!("there are no random numbers: {error}")))?;
        let mut store = ExternalStore {
            endpoint: endpoint.clone(),
            bucket: config.bucket.clone().unwrap_or_default(),
            prefix: format!("underlay-{random}/"),
            region: config.region.clone().unwrap_or_else(|| "us-east-1".to_owned()),
            path_style: config.path_style,
            signs_v2: config.signs_v2,
            keys,
            token,
            variables: names.join(" and "),
            door,
            namespace: Arc::clone(namespace),
            python: python.to_owned(),
            jobs: jobs.to_owned(),
            is_clear: true,
            entry: LedgerEntry::default(),
        };
        let place = format!("objects of jobs at {}, in the store {}", store.url(""), endpoint.show());
        store.entry = ledger.enter(&place).map_err(failed)?;
        if let Err(problem) = store.ask("check", CHECK_LIMIT) {
            // It says itself what may be left.
            store.entry.strike_out();
            return Err(failed(problem));
        }
        store.is_clear = false;
        Ok(store)
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("s3a://{}/{}{name}", self.bucket, self.prefix)
    }

    /// A session's settings for reaching it.
    pub(super) fn settings(&self) -> BTreeMap<String, String> {
        let mut settings: BTreeMap<String, String> = [
            ("endpoint", self.endpoint.url_inside()),
            ("endpoint.region", self.region.clone()),
            ("path.style.access", self.path_style.to_string()),
            ("connection.ssl.enabled", self.endpoint.https.to_string()),
            ("access.key", self.keys.access.clone()),
            ("secret.key", self.keys.secret.clone()),
        ]
        .map(|(name, value)| (format!("spark.hadoop.fs.s3a.{name}"), value))
        .into();
        let mut add = |name: &str, value: &str| {
            settings.insert(format!("spark.hadoop.fs.s3a.{name}"), value.to_owned());
        };
        if self.signs_v2 {
            add("signing-algorithm", "S3SignerType");
        }
        if let Some(token) = &self.token {
            add("session.token", token);
        }
        // Only these keys: by default S3A tries other providers first.
        let provider = if self.token.is_some() { "Temporary" } else { "Simple" };
        add(
            "aws.credentials.provider",
            &format!("org.apache.hadoop.fs.s3a.{provider}AWSCredentialsProvider"),
        );
        settings
    }

    /// Its present trouble, by the same questions as at the start.
    pub(super) fn trouble(&self) -> Option<String> {
        self.ask("check", CHECK_LIMIT).err()
    }

    /// S3A would go on trying for very long.
    pub(super) fn health(&self) -> Result<(), SystemError> {
        self.door.gone().map_or(Ok(()), |reason| {
            let problem = format!("{} can't be reached any more: {reason}", self.endpoint.show());
            Err(SystemError::failed(NAME, "running", problem))
        })
    }

    pub(super) fn figures(&self) -> BTreeMap<String, f64> {
        let carried = self.door.carried();
        [("link_to_store_bytes", carried.near_to_far), ("link_from_store_bytes", carried.far_to_near)]
            .map(|(name, bytes)| (name.to_owned(), bytes as f64))
            .into()
    }

    /// Deletes all that jobs wrote, once their processes are gone.
    pub(super) fn stop(mut self) -> Result<(), SystemError> {
        self.clear()
    }

    fn clear(&mut self) -> Result<(), SystemError> {
        if self.is_clear {
            return Ok(());
        }
        let began = Instant::now();
        while !self.namespace.processes().is_empty() && began.elapsed() < END_LIMIT {
            std::thread::sleep(POLL);
        }
        let failed = |problem: &str| {
            let problem = format!("the jobs' files may still be at {}: {problem}", self.url(""));
            SystemError::failed(NAME, "stopping", problem)
        };
        if !self.namespace.processes().is_empty() {
            return Err(failed("processes that may write there have not ended"));
        }
        self.ask("clear", CLEAR_LIMIT).map_err(|problem| failed(&problem))?;
        self.is_clear = true;
        self.entry.strike_out();
        Ok(())
    }

    /// One run of the program beside the jobs. An error says what the store did.
    fn ask(&self, action: &str, limit: Duration) -> Result<Value, String> {
        let request = json!({
            "do": action, "prefix": self.prefix, "bucket": self.bucket, "region": self.region,
            "https": self.endpoint.https, "host": self.endpoint.host_inside(), "port": self.endpoint.port,
            "address": ADDRESS.to_string(), "path_style": self.path_style,
            "signatures": if self.signs_v2 { "v2" } else { "v4" },
            "access": self.keys.access, "secret": self.keys.secret, "token": self.token.as_deref().unwrap_or_default(),
        });
        let place = self.endpoint.show();
        let answer = self.run(&request.to_string(), limit).map_err(|error| {
            // From then on the end of the run deletes all objects below the prefix.
            let left = match action == "check" && self.is_clear && may_have_written(&error) {
                true => format!("; '{}probe' may be left in the bucket '{}'", self.prefix, self.bucket),
                false => String::new(),
            };
            format!("can't ask {place}: {error}{left}")
        })?;
        if let Some(problem) = answer["problem"].as_str() {
            // The door knows better than its client, whose connection it only closed.
            return Err(match self.door.last_failure() {
                Some(reason) => format!("{place} can't be reached: {reason}; check `endpoint`"),
                None => format!("{place} accepts connections and can't be used: {problem}"),
            });
        }
        let Some(status) = answer["status"].as_u64() else { return Ok(answer) };
        let word = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let status_words = format!("{status} {}", word("code"));
        Err(match status {
            401 | 403 => format!(
                "{place} refuses the key of {} for the bucket '{}' ({status_words}): check these variables, and that the key may list, write and delete there",
                self.variables, self.bucket
            ),
            404 => format!(
                "{place} has no bucket '{}' ({status_words}): make it first, since a study makes none elsewhere",
                self.bucket
            ),
            301 | 307 | 400 if !word("hint").is_empty() => {
                format!(
                    "the bucket '{}' is in another region ({status_words}): set region = \"{}\"",
                    self.bucket,
                    word("hint")
                )
            }
            500.. => {
                format!("{place} answers {status_words}: it is overloaded or out of order; try again later")
            }
            _ => format!("{place} answers {status_words} to a request for the bucket '{}'", self.bucket),
        })
    }

    fn run(&self, request: &str, limit: Duration) -> std::io::Result<Value> {
        let mut command = Command::new(&self.python);
        command.arg("-I").arg(self.jobs.join(PROGRAM)).current_dir("/");
        without_variables_of_the_user(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C on a terminal must not end what clears away.
        command.process_group(0);
        self.namespace.enter(&mut command);
        let mut child = command.spawn()?;
        let (mut input, output) = (child.stdin.take(), child.stdout.take());
        let written = input.as_mut().map_or(Ok(()), |input| input.write_all(request.as_bytes()));
        drop(input);
        let began = Instant::now();
        let ended = loop {
            match child.try_wait()? {
                Some(_) => break true,
                None if began.elapsed() > limit => break false,
                None => std::thread::sleep(POLL),
            }
        };
        if !ended {
            child.kill()?;
            child.wait()?;
            let problem = format!("no end after {:.0} s", limit.as_secs_f64());
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, problem));
        }
        written?;
        // It fits into the pipe, so the program has not waited for us.
        let mut text = String::new();
        if let Some(output) = output {
            output.take(MAX_ANSWER_BYTES).read_to_string(&mut text)?;
        }
        serde_json::from_str(&text).map_err(|_| std::io::Error::other("Python ended without an answer"))
    }
}

/// Whether a program that did not answer may have got as far as its requests.
fn may_have_written(error: &std::io::Error) -> bool {
    // The other kinds are those of a program that could not be started.
    matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::Other)
}

impl Drop for ExternalStore {
    fn drop(&mut self) {
        if self.is_clear {
            return;
        }
        // The way of a run that failed or was stopped: nobody else says what is left in a bucket that isn't ours.
        // The reader of standard error may be gone, which must not prevent the deletion.
        let say = |text: &dyn std::fmt::Display| drop(writeln!(std::io::stderr(), "{text}"));
        say(&format_args!("deleting the jobs' files at {}", self.url("")));
        if let Err(error) = self.clear() {
            say(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_ran_can_have_left_something() {
        let error_of = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        assert!(!may_have_written(&error_of(std::io::ErrorKind::NotFound)), "there is no such program");
        assert!(may_have_written(&error_of(std::io::ErrorKind::TimedOut)));
        assert!(may_have_written(&std::io::Error::other("ended without an answer")));
    }
}
