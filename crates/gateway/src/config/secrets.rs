//! Secrets, from where the configuration says they are.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use openssl::x509::X509;
use underlay_files::{read, read_given_secret};

use super::{GatewayConfig, SecretPlace};
use crate::at_rest::AtRest;

/// No secret is longer.
const MAX_BYTES: u64 = 4096;
/// No file of certificates is longer.
const MAX_CERTIFICATE_BYTES: u64 = 1 << 20;
/// Of a secret that others prove to this gateway.
const MIN_CHARACTERS: usize = 16;

/// The secrets of a configuration, read once at the start.
#[derive(Clone, Default)]
pub(crate) struct ConfigSecrets {
    /// By access key.
    pub(crate) of_clients: HashMap<String, String>,
    pub(crate) of_store: Option<String>,
    /// The gateways' shared secret.
    pub(crate) of_cluster: Option<String>,
    pub(crate) of_etcd: Option<String>,
    pub(crate) at_rest: Option<Arc<AtRest>>,
}

impl ConfigSecrets {
    /// Reads them all, and checks that the authorities' certificates exist: so mistakes show at once, and not at the
    /// first use.
    ///
    /// # Errors
    /// When one is not where the configuration says, or others can read its file.
    pub(crate) fn read(config: &GatewayConfig) -> Result<ConfigSecrets, String> {
        let authorities = [
            ("[s3]", &config.s3.authority),
            ("[cluster]", &config.cluster.as_ref().and_then(|own| own.authority.clone())),
        ];
        for (section, file) in authorities {
            if let Some(file) = file {
                check_authority(file)
                    .map_err(|problem| format!("`authority` of {section}: {}: {problem}", file.display()))?;
            }
        }
        let of_clients = ConfigSecrets::read_client_secrets(config)?;
        let of_store = match &config.s3.secret {
            // The store chose it, so it may be as short as the store likes.
            Some(place) => Some(one(place).map_err(|problem| format!("the secret of [s3]: {problem}"))?),
            None => None,
        };
        let (mut of_cluster, mut of_etcd) = (None, None);
        if let Some(cluster) = &config.cluster {
            let failed = |problem| format!("the secret of [cluster]: {problem}");
            of_cluster = Some(one(&cluster.secret).and_then(long_enough).map_err(failed)?);
            if let Some((_, place)) = &cluster.etcd_user {
                let failed = |problem| format!("the secret of etcd's user in [cluster]: {problem}");
                of_etcd = Some(one(place).map_err(failed)?);
            }
        }
        let at_rest = read_at_rest_key(config)?;
        Ok(ConfigSecrets { of_clients, of_store, of_cluster, of_etcd, at_rest })
    }

    /// Those of `[key.*]`, by access key.
    ///
    /// # Errors
    /// As [`read`](ConfigSecrets::read).
    pub(crate) fn read_client_secrets(config: &GatewayConfig) -> Result<HashMap<String, String>, String> {
        let mut of_clients = HashMap::new();
        for key in &config.keys {
            let secret = one(&key.secret)
                .and_then(long_enough)
                .map_err(|problem| format!("the secret of [key.{}]: {problem}", key.name))?;
            of_clients.insert(key.id.clone(), secret);
        }
        Ok(of_clients)
    }
}

fn check_authority(file: &Path) -> Result<(), String> {
    let text = read(file, MAX_CERTIFICATE_BYTES).map_err(|error| error.to_string())?;
    let found = X509::stack_from_pem(&text).map_err(|error| error.to_string())?;
    match found.is_empty() {
        true => Err("it has no certificate (PEM begins with -----BEGIN CERTIFICATE-----)".to_owned()),
        false => Ok(()),
    }
}

/// The key for encryption at rest, which `check` needs alone.
///
/// # Errors
/// When it is not where the configuration says, others can read its file, or it is none.
pub(crate) fn read_at_rest_key(config: &GatewayConfig) -> Result<Option<Arc<AtRest>>, String> {
    let Some(place) = &config.local.encryption else { return Ok(None) };
    let key = one(place).and_then(|text| AtRest::parse(&text));
    key.map(|key| Some(Arc::new(key))).map_err(|problem| format!("the key of [local]: {problem}"))
}

fn one(place: &SecretPlace) -> Result<String, String> {
    let text = match place {
        SecretPlace::Environment(name) => std::env::var(name)
            .map_err(|_| format!("the environment has no {name}: set it before the start"))?,
        SecretPlace::File(path) => {
            read_given_secret(path, MAX_BYTES).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let secret = text.trim();
    match secret.is_empty() {
        true => Err("it is empty".to_owned()),
        false => Ok(secret.to_owned()),
    }
}

/// A secret that this gateway verifies: a shorter one could be guessed.
fn long_enough(secret: String) -> Result<String, String> {
    match secret.len() < MIN_CHARACTERS {
        true => Err("it has fewer than 16 characters: take a longer one (`openssl rand -hex 20`)".to_owned()),
        false => Ok(secret),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_secret_is_refused_only_for_clients() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "minioadmin\n").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let long = directory.path().join("long");
        std::fs::write(&long, "a-secret-of-the-test-only").unwrap();
        std::fs::set_permissions(&long, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let read = |of_client: &std::path::Path| {
            let text = format!(
                "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"/local\"\n\
                 [s3]\nendpoint = \"http://127.0.0.1:9001\"\nkey_id = \"minioadmin\"\nsecret_file = \"{}\"\n\
                 [bucket.lake]\nstore = \"s3://lake\"\n\
                 [key.a]\nid = \"KEY\"\nsecret_file = \"{}\"\nallow = [{{ bucket = \"lake\", may = [\"read\"] }}]\n",
                file.display(),
                of_client.display()
            );
            ConfigSecrets::read(&GatewayConfig::parse("gateway.toml", &text).unwrap())
        };
        assert_eq!(read(&long).unwrap().of_store.as_deref(), Some("minioadmin"));
        assert!(read(&file).is_err_and(|why| why.contains("[key.a]") && why.contains("16 characters")));
    }
}
