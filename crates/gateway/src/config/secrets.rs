//! Secrets, from where the configuration says they are.

use std::collections::HashMap;

use underlay_files::read_secret;

use super::{Config, SecretPlace};

/// No secret is longer.
const MOST_BYTES: u64 = 4096;

/// The secrets of a configuration, read once at the start.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// By access key.
    pub(crate) of_clients: HashMap<String, String>,
    pub(crate) of_store: Option<String>,
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
        Ok(Secrets { of_clients, of_store })
    }
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
