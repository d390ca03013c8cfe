//! Directories that must not contain each other: the stores, the gateway's own directory, and its files. Every file in
//! a store is an object, which clients read and write.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use underlay_config::{Diagnostic, Diagnostics};

use super::{GatewayConfig, SecretPlace, StorePlace};

/// Without `.` and `..`, as far as the text tells.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Whether one is within the other, or both are the same.
pub(super) fn are_nested(one: &Path, other: &Path) -> bool {
    let (one, other) = (plain(one), plain(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// Files of the gateway that no client may see or replace, with what they are.
fn own_files(config: &GatewayConfig) -> Vec<(String, &Path)> {
    let mut secrets: Vec<(String, &SecretPlace)> = Vec::new();
    for key in &config.keys {
        secrets.push((format!("the secret of [key.{}]", key.name), &key.secret));
    }
    secrets.extend(config.s3.secret.iter().map(|place| ("the secret of [s3]".to_owned(), place)));
    let encryption = config.local.encryption.iter();
    secrets.extend(encryption.map(|place| ("the encryption key of [local]".to_owned(), place)));
    if let Some(cluster) = &config.cluster {
        secrets.push(("the secret of [cluster]".to_owned(), &cluster.secret));
        let password = cluster.etcd_user.iter();
        secrets.extend(password.map(|(_, place)| ("etcd's password".to_owned(), place)));
    }
    let mut files: Vec<(String, &Path)> = Vec::new();
    for (description, place) in secrets {
        if let SecretPlace::File(path) = place {
            files.push((description, path));
        }
    }
    if let Some(tls) = &config.tls {
        files.push(("the key of [tls]".to_owned(), &tls.key));
        files.push(("the certificate of [tls]".to_owned(), &tls.certificate));
    }
    files.extend(config.admin.token.as_deref().map(|path| ("the token of [admin]".to_owned(), path)));
    files.extend(config.access_log.as_deref().map(|path| ("`access_log`".to_owned(), path)));
    files
}

/// A finding for each store that something of the gateway lies in, or that lies in its directory.
pub(super) fn check(config: &GatewayConfig, span: &Range<usize>, findings: &mut Diagnostics) {
    let named = config.buckets.iter().map(|bucket| (format!("[bucket.{}]", bucket.name), &bucket.store));
    let new = config.new_buckets.iter().map(|new| ("[new_buckets]".to_owned(), &new.under));
    for (title, place) in named.chain(new) {
        let StorePlace::Directory(store) = place else { continue };
        let mut refuse = |message: String, label: &str| {
            findings.push(Diagnostic::error(span.clone(), message, label));
        };
        if are_nested(store, &config.local.directory) {
            refuse(
                format!("the store of {title} and the gateway's own directory lie in each other"),
                "expected a `store` and a `directory` of [local], neither of which contains the other",
            );
        }
        for (description, path) in own_files(config) {
            if plain(path).starts_with(plain(store)) {
                refuse(
                    format!(
                        "{description} lies in the store of {title}, where clients can read it as an object"
                    ),
                    "expected a file that is not in a store: move it",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::GatewayConfig;

    /// The message about a configuration with this store and these lines.
    fn said(store: &str, lines: &str, secret: &str) -> String {
        let text = format!(
            "listen = \"127.0.0.1:9000\"\n{lines}[local]\ndirectory = \"/var/lib/gateway\"\n[bucket.lake]\nstore = \"{store}\"\n\
             [key.test]\nid = \"TEST\"\nsecret_file = \"{secret}\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n"
        );
        GatewayConfig::parse("gateway.toml", &text)
            .map_or_else(|findings| findings.to_string(), |_| String::new())
    }

    #[test]
    fn store_and_local_directory_may_not_nest() {
        for store in [
            "/var/lib/gateway",
            "/var/lib/gateway/objects",
            "/var/lib/gateway/journal",
            "/var/lib",
            "/",
            "/srv/../var/lib/./gateway/objects",
        ] {
            let message = said(store, "", "/etc/secret");
            assert!(message.contains("lie in each other"), "{store}: {message}");
        }
        for store in ["/var/lib/gateway-objects", "/srv/objects", "s3://bucket/var/lib/gateway"] {
            assert_eq!(said(store, "", "/etc/secret"), "", "{store}");
        }
    }

    #[test]
    fn gateway_files_inside_store_are_refused() {
        assert!(said("/srv", "", "/srv/secret").contains("the secret of [key.test] lies in"));
        assert!(said("/srv", "", "/etc/../srv/a/secret").contains("the secret of [key.test] lies in"));
        let log = said("/srv", "access_log = \"/srv/log\"\n", "/etc/secret");
        assert!(log.contains("`access_log` lies in the store of [bucket.lake]"), "{log}");
        assert_eq!(said("/srv", "access_log = \"/var/log/gateway\"\n", "/etc/secret"), "");
    }
}
