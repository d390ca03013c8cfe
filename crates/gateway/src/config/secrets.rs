//! Secrets, from where the configuration says they are.

use std::collections::HashMap;
use std::sync::Arc;

use underlay_files::read_secret;

use super::{Config, SecretPlace};
use crate::at_rest::AtRest;

/// No secret is longer.
const MOST_BYTES: u64 = 4096;

/// The secrets of a configuration, read once at the start.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// By access key.
    pub(crate) of_clients: HashMap<String, String>,
    pub(crate) of_store: Option<String>,
    /// What gateways know each other by.
    pub(crate) of_cluster: Option<String>,
    pub(crate) of_etcd: Option<String>,
    pub(crate) at_rest: Option<Arc<AtRest>>,
}

impl Secrets {
    /// # Errors
    /// When one is not where the configuration says, or others can read its file.
    pub(crate) fn read(config: &Config) -> Result<Secrets, String> {
        let mut of_clients = HashMap::new();
        for key in &config.keys {
            let secret =
                one(&key.secret).map_err(|problem| format!("the secret of [key.{}]: {problem}", key.name))?;
            of_clients.insert(key.id.clone(), secret);
        }
        let of_store = match &config.s3.secret {
            Some(place) => Some(one(place).map_err(|problem| format!("the secret of [s3]: {problem}"))?),
            None => None,
        };
        let (mut of_cluster, mut of_etcd) = (None, None);
        if let Some(cluster) = &config.cluster {
            let failed = |problem| format!("the secret of [cluster]: {problem}");
            of_cluster = Some(one(&cluster.secret).map_err(failed)?);
            if let Some((_, place)) = &cluster.etcd_user {
                let failed = |problem| format!("the secret of etcd's user in [cluster]: {problem}");
                of_etcd = Some(one(place).map_err(failed)?);
            }
        }
        let at_rest = at_rest_of(config)?;
        Ok(Secrets { of_clients, of_store, of_cluster, of_etcd, at_rest })
    }
}

/// The key for encryption at rest, which `check` needs alone.
///
/// # Errors
/// When it is not where the configuration says, others can read its file, or it is none.
pub(crate) fn at_rest_of(config: &Config) -> Result<Option<Arc<AtRest>>, String> {
    let Some(place) = &config.local.encryption else { return Ok(None) };
    let key = one(place).and_then(|text| AtRest::parse(&text));
    key.map(|key| Some(Arc::new(key))).map_err(|problem| format!("the key of [local]: {problem}"))
}

fn one(place: &SecretPlace) -> Result<String, String> {
    let text = match place {
        SecretPlace::Environment(name) => std::env::var(name)
            .map_err(|_| format!("the environment has no {name}: set it before the start"))?,
        SecretPlace::File(path) => {
            read_secret(path, MOST_BYTES).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let secret = text.trim();
    match secret.len() {
        0 => Err("it is empty".to_owned()),
        // S3 clients bring no shorter ones, and they could be guessed.
        1..16 => {
            Err("it has fewer than 16 characters: take a longer one (`openssl rand -hex 20`)".to_owned())
        }
        _ => Ok(secret.to_owned()),
    }
}
