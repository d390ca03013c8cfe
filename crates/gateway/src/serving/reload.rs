//! Settings that SIGHUP reloads without a restart: the certificate, the keys of clients with their secrets and grants,
//! and the access log's file. The new configuration counts as a whole or not at all: a faulty file changes nothing, and
//! the log says why. The access log is opened again either way, since the program that moved the old file away may
//! compress it soon.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openssl::ssl::SslAcceptor;
use tokio::signal::unix::Signal;

use super::access_log::{AccessLog, open_file};
use super::tls::{self, TlsFrontend};
use crate::config::{AccessKey, ConfigSecrets, GatewayConfig};
use crate::failure::CommandFailure;
use crate::s3::KeyPermissions;

/// The parts to replace.
pub(super) struct ReloadTargets {
    /// Of the configuration.
    pub(super) path: PathBuf,
    /// As it counts now: what needs a restart is held against this.
    pub(super) running: GatewayConfig,
    pub(super) permissions: Arc<KeyPermissions>,
    pub(super) front: Option<Arc<TlsFrontend>>,
    pub(super) access_log: Arc<AccessLog>,
}

/// Read whole and found right, before any of it is put in its place.
struct ReloadedFiles {
    config: GatewayConfig,
    secrets: std::collections::HashMap<String, String>,
    acceptor: Option<SslAcceptor>,
}

/// Reads everything anew each time that the signal comes.
pub(super) async fn on_hangup(hangup: &mut Signal, reloads: &mut ReloadTargets) {
    while hangup.recv().await.is_some() {
        // Files may lie on a disk that hangs.
        let (path, current) = (reloads.path.clone(), reloads.running.clone());
        let read = crate::blocking::spawn_blocking(move || {
            let found = find(&path, &current);
            let renamed = found.as_ref().ok().and_then(|found| found.config.access_log.clone());
            let file = current.access_log.map(|before| open_file(&renamed.unwrap_or(before)));
            (found, file)
        });
        match read.await {
            Ok((found, file)) => reloads.put_in_place(found, file),
            Err(error) => tracing::error!("SIGHUP: nothing is changed: {error}"),
        }
    }
}

fn find(path: &Path, running: &GatewayConfig) -> Result<ReloadedFiles, CommandFailure> {
    let config = GatewayConfig::load(path)?;
    let secrets = ConfigSecrets::read_client_secrets(&config).map_err(CommandFailure::Mistake)?;
    let acceptor = match (&config.tls, &running.tls) {
        (Some(tls), Some(_)) => Some(tls::acceptor(tls).map_err(CommandFailure::Mistake)?),
        _ => None,
    };
    Ok(ReloadedFiles { config, secrets, acceptor })
}

impl ReloadTargets {
    fn put_in_place(
        &mut self,
        found: Result<ReloadedFiles, CommandFailure>,
        file: Option<Result<File, CommandFailure>>,
    ) {
        match file {
            Some(Ok(file)) => self.access_log.go_on_in(file),
            Some(Err(reason)) => tracing::error!("SIGHUP: lines still go to the old file: {}", reason.text()),
            None => {}
        }
        let ReloadedFiles { config, secrets, acceptor } = match found {
            Ok(found) => found,
            Err(reason) => {
                let reason = reason.text();
                tracing::error!(
                    "SIGHUP: nothing is changed, and the settings that were loaded before stay: {reason}"
                );
                return;
            }
        };
        let waiting = waits_for_restart(&self.running, &config);
        let changed = changed_keys(&self.running.keys, &config.keys);
        self.permissions.replace(&config.keys, &secrets);
        if let (Some(front), Some(acceptor)) = (&self.front, acceptor) {
            front.replace(acceptor);
        }
        // The rest stays as it is until the next start, and the next signal logs it again.
        self.running.keys = config.keys;
        if self.running.tls.is_some() && config.tls.is_some() {
            self.running.tls = config.tls;
        }
        if self.running.access_log.is_some() && config.access_log.is_some() {
            self.running.access_log = config.access_log;
        }
        if !waiting.is_empty() {
            tracing::warn!("SIGHUP: the changes in {} need a restart", waiting.join(", "));
        }
        let certificate = if self.front.is_some() { ", and the certificate" } else { "" };
        tracing::info!("SIGHUP: loaded {} keys ({changed}){certificate}", self.running.keys.len());
    }
}

/// For the log: which ids are new, and which ones are gone.
fn changed_keys(before: &[AccessKey], after: &[AccessKey]) -> String {
    let missing_in = |some: &[AccessKey], others: &[AccessKey]| -> Vec<String> {
        let is_there = |key: &&AccessKey| others.iter().any(|other| other.id == key.id);
        some.iter().filter(|key| !is_there(key)).map(|key| key.id.clone()).collect()
    };
    let (new, removed) = (missing_in(after, before), missing_in(before, after));
    match (new.is_empty(), removed.is_empty()) {
        (true, true) => "the same ids".to_owned(),
        (false, true) => format!("new: {}", new.join(", ")),
        (true, false) => format!("gone: {}", removed.join(", ")),
        (false, false) => format!("new: {}; gone: {}", new.join(", "), removed.join(", ")),
    }
}

/// Sections that differ and can't be changed while the gateway runs.
fn waits_for_restart(running: &GatewayConfig, new: &GatewayConfig) -> Vec<&'static str> {
    let rows = [
        ("`listen`", running.listen != new.listen),
        ("`hosts`", running.hosts != new.hosts),
        ("`region`", running.region != new.region),
        ("[tls], which comes or goes", running.tls.is_some() != new.tls.is_some()),
        ("`access_log`, which comes or goes", running.access_log.is_some() != new.access_log.is_some()),
        ("[local]", running.local != new.local),
        ("[limits]", running.limits != new.limits),
        ("[s3]", running.s3 != new.s3),
        ("[bucket.*]", running.buckets != new.buckets),
        ("[new_buckets]", running.new_buckets != new.new_buckets),
        ("[admin]", running.admin != new.admin),
        ("[cluster]", running.cluster != new.cluster),
    ];
    let mut waiting: Vec<&'static str> =
        rows.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    // All settings without a row here.
    let reloaded = GatewayConfig {
        keys: new.keys.clone(),
        tls: new.tls.clone(),
        access_log: new.access_log.clone(),
        ..running.clone()
    };
    if waiting.is_empty() && reloaded != *new {
        waiting.push("other settings");
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(lines: &str, sections: &str) -> GatewayConfig {
        let text = format!(
            "listen = \"127.0.0.1:9000\"\n{lines}[local]\ndirectory = \"/var/lib/gateway\"\n\
             [bucket.lake]\nstore = \"/srv/objects\"\n\
             [key.one]\nid = \"ONE\"\nsecret_env = \"SECRET\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n{sections}"
        );
        GatewayConfig::parse("gateway.toml", &text).unwrap()
    }

    #[test]
    fn reload_applies_supported_changes_and_names_others() {
        let running = config("access_log = \"/var/log/a\"\n", "[tls]\ncertificate = \"/a\"\nkey = \"/b\"\n");
        let key = "[key.two]\nid = \"TWO\"\nsecret_env = \"SECRET\"\nallow = [{ bucket = \"*\", may = [\"read\"] }]\n";
        let tls = "[tls]\ncertificate = \"/c\"\nkey = \"/d\"\n";
        let same = config("access_log = \"/var/log/b\"\n", &format!("{key}{tls}"));
        assert_eq!(waits_for_restart(&running, &same), Vec::<&str>::new());
        assert_eq!(changed_keys(&running.keys, &same.keys), "new: TWO");
        assert_eq!(changed_keys(&same.keys, &running.keys), "gone: TWO");
        let other = config("", "[limits]\nrequests = 7\n[bucket.sea]\nstore = \"/srv/sea\"\n");
        let waiting = waits_for_restart(&running, &other);
        assert_eq!(
            waiting,
            ["[tls], which comes or goes", "`access_log`, which comes or goes", "[limits]", "[bucket.*]"]
        );
    }
}
