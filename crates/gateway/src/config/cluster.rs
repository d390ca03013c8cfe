//! `[cluster]`: with whom a gateway shares its stores.

use std::path::PathBuf;
use std::time::Duration;

use underlay_config::{Diagnostic, Diagnostics, Field};

use super::{BucketConfig, ClusterConfig, StorePlace};

const TTL: Duration = Duration::from_secs(10);
const MIN_TTL: Duration = Duration::from_secs(2);
const MAX_TTL: Duration = Duration::from_secs(120);

/// Parsers that only `read` has.
pub(super) struct ClusterParsers {
    pub(super) address: fn(&Field<'_>, &mut Diagnostics) -> Option<std::net::SocketAddr>,
    pub(super) path: fn(&Field<'_>, &mut Diagnostics) -> Option<PathBuf>,
    pub(super) secret: fn(&mut underlay_config::Section<'_>, &mut Diagnostics) -> Option<super::SecretPlace>,
}

pub(super) fn cluster(
    field: &Field<'_>,
    takers: &ClusterParsers,
    buckets: &[BucketConfig],
    has_new_buckets: bool,
    findings: &mut Diagnostics,
) -> Option<ClusterConfig> {
    let mut section = field.section("[cluster]", findings)?;
    let mut etcd = Vec::new();
    match section.take("etcd") {
        Some(field) => {
            for element in field.one_or_many(findings) {
                let Some(url) = element.text("a URL such as \"http://10.0.0.2:2379\"", findings) else {
                    continue;
                };
                match url.value.starts_with("http://") || url.value.starts_with("https://") {
                    true => etcd.push(url.value.trim_end_matches('/').to_owned()),
                    false => element.invalid("expected a URL that begins with https:// or http://", findings),
                }
            }
        }
        None => section.missing(
            "etcd",
            "expected where etcd is, as in `etcd = [\"http://10.0.0.2:2379\"]`",
            findings,
        ),
    }
    let name = section.require("name", "name = \"gateway-1\"", findings).and_then(|field| {
        let name = field.text("this gateway's name, which no other has", findings)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if (1..=63).contains(&name.value.len()) && name.value.chars().all(is_name) {
            return Some(name.value);
        }
        field.invalid("expected up to 63 letters, digits, hyphens, dots and underscores", findings);
        None
    });
    let listen = section
        .require("listen", "listen = \"10.0.0.5:9002\"", findings)
        .and_then(|field| (takers.address)(&field, findings));
    let mut text = |key: &'static str, description: &str| {
        section.take(key).and_then(|field| field.text(description, findings)).map(|text| text.value)
    };
    let prefix = text("prefix", "the prefix of the cluster's keys in etcd");
    let address = text("address", "how the other gateways reach this one, such as \"gateway-1:9002\"");
    let user = text("etcd_user", "a user of etcd");
    let authority = section.take("authority").and_then(|field| (takers.path)(&field, findings));
    let etcd_secret = section.take("etcd_secret_file").and_then(|field| (takers.path)(&field, findings));
    // By what is written, since a half that could not be read is there.
    if section.has("etcd_user") != section.has("etcd_secret_file") {
        let label = "expected `etcd_user` with `etcd_secret_file`, or neither";
        findings.push(Diagnostic::error(
            section.span.clone(),
            "[cluster] has only a half of etcd's user",
            label,
        ));
    }
    if user.is_some() && etcd.iter().any(|url| url.starts_with("http://")) {
        let label = "expected `etcd` with https:// where it has a user: the password would be sent in clear";
        findings.push(Diagnostic::error(
            section.span.clone(),
            "[cluster] would show etcd's password to anybody who can read the traffic",
            label,
        ));
    }
    let ttl = section.take("ttl").and_then(|field| {
        let ttl = field.duration(false, findings)?.value;
        if (MIN_TTL..=MAX_TTL).contains(&ttl) && ttl.subsec_nanos() == 0 {
            return Some(ttl);
        }
        field.invalid("expected whole seconds from \"2 s\" to \"120 s\"", findings);
        None
    });
    let segments = section.take("segments").and_then(|field| field.whole(0..=8, findings));
    let secret = (takers.secret)(&mut section, findings);
    if secret.is_none() && !section.has("secret_env") && !section.has("secret_file") {
        section.missing(
            "secret_file",
            "expected `secret_file` or `secret_env`: the gateways know each other by it",
            findings,
        );
    }
    section.finish(findings);
    let segments = segments.map_or(1, |segments| segments.value as usize);
    if has_new_buckets {
        let label = "expected every bucket as a section `[bucket.NAME]`, the same at all gateways";
        findings.push(Diagnostic::error(
            field.key_span.clone(),
            "[new_buckets] and [cluster] don't go together",
            label,
        ));
    }
    // Whether a name is a file or a directory, one gateway has to see.
    if segments != 1 && buckets.iter().any(|bucket| matches!(bucket.store, StorePlace::Directory(_))) {
        let label = "expected `segments = 1` where a store is a directory";
        findings.push(Diagnostic::error(
            field.key_span.clone(),
            "a directory can't be divided like this",
            label,
        ));
    }
    Some(ClusterConfig {
        etcd,
        etcd_user: user.zip(etcd_secret.map(super::SecretPlace::File)),
        prefix: prefix.unwrap_or_else(|| "/underlay-gateway".to_owned()),
        name: name?,
        listen: listen?,
        address,
        secret: secret?,
        authority,
        ttl: ttl.unwrap_or(TTL),
        segments,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::GatewayConfig;

    #[test]
    fn etcd_password_over_plain_http_is_refused() {
        let text = |url: &str| {
            format!(
                "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"/var/lib/gateway\"\njournal = \"1 GiB\"\nmemory = \"64 MiB\"\n\
                 [bucket.lake]\nstore = \"/srv/objects\"\n\
                 [key.test]\nid = \"TEST\"\nsecret_env = \"SECRET\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n\
                 [cluster]\netcd = [\"{url}\"]\nname = \"a\"\nlisten = \"127.0.0.1:9002\"\nsecret_env = \"SECRET\"\n\
                 etcd_user = \"gateway\"\netcd_secret_file = \"/etc/secret\"\n"
            )
        };
        let config = GatewayConfig::parse("gateway.toml", &text("https://10.0.0.2:2379")).unwrap();
        assert_eq!(config.cluster.unwrap().etcd_user.unwrap().0, "gateway");
        let findings = GatewayConfig::parse("gateway.toml", &text("http://10.0.0.2:2379")).unwrap_err();
        assert!(findings.to_string().contains("would show etcd's password"), "{findings}");
    }
}
