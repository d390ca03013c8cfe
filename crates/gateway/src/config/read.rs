//! From text to [`GatewayConfig`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use underlay_config::units::format_bytes;
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, parse};

use super::cluster::ClusterParsers;
use super::sizes::{MIN_REGIONS, region_bytes};
use super::{
    AccessKey, AdminConfig, BucketConfig, GatewayConfig, GatewayLimits, KeyGrant, LocalConfig, NewBuckets,
    PrefixRule, S3Endpoint, SecretPlace, StoreConsistency, StorePlace, TlsConfig, WriteMode,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const UPLOADS_EXPIRE: Duration = Duration::from_secs(7 * 24 * 3600);
const FLUSH_AFTER: Duration = Duration::from_secs(5);
/// Less does not hold what one request reads.
const MIN_MEMORY_BLOCKS: u64 = 4;
const MIN_JOURNAL_BYTES: u64 = MIB;
const NOT_WITHIN: &str = "expected stores outside of each other";

pub(super) fn read(text: &str, findings: &mut Diagnostics) -> Option<GatewayConfig> {
    let document = parse(text, findings)?;
    let mut root = Section::root("the gateway", document.as_table());
    let listen = root
        .require("listen", "listen = \"127.0.0.1:9000\"", findings)
        .and_then(|field| address(&field, findings));
    let hosts = root.take("hosts").map(|field| hosts(&field, findings)).unwrap_or_default();
    let region = root.take("region").and_then(|field| region(&field, findings));
    let tls = root.take("tls").and_then(|field| tls(&field, findings));
    let local = match root.take("local") {
        Some(field) => local(&field, findings),
        None => {
            root.missing(
                "local",
                "expected a section `[local]` with `directory = \"/var/lib/underlay-gateway\"`",
                findings,
            );
            None
        }
    };
    let limits = limits(root.take("limits").as_ref(), findings);
    let s3 = s3(root.take("s3").as_ref(), findings);
    let bucket_field = root.take("bucket");
    let (buckets, has_all_buckets) = findings.attempt(|findings| buckets(bucket_field.as_ref(), findings));
    let new_buckets = root.take("new_buckets").and_then(|field| {
        let new = new_buckets(&field, findings)?;
        for bucket in buckets.iter().filter(|bucket| is_over_same(&bucket.store, &new.under)) {
            let message = format!("[new_buckets] and [bucket.{}] are over the same objects", bucket.name);
            findings.push(Diagnostic::error(field.key_span.clone(), message, NOT_WITHIN));
        }
        Some(new)
    });
    let has_new_buckets = root.has("new_buckets");
    let known_buckets = has_all_buckets.then_some(buckets.as_slice());
    let key_field = root.take("key");
    let (keys, has_all_keys) =
        findings.attempt(|findings| keys(key_field.as_ref(), known_buckets, has_new_buckets, findings));
    let admin = admin(root.take("admin").as_ref(), findings);
    let cluster = root.take("cluster").and_then(|field| {
        let takers = ClusterParsers { address, path, secret };
        super::cluster::cluster(&field, &takers, &buckets, new_buckets.is_some(), findings)
    });
    let access_log = root.take("access_log").and_then(|field| path(&field, findings));
    root.finish(findings);
    same_addresses(
        [
            ("`listen`", listen),
            ("`listen` of [admin]", Some(admin.listen)),
            ("`health_listen` of [admin]", admin.health),
            ("`listen` of [cluster]", cluster.as_ref().map(|own| own.listen)),
        ],
        root.span.clone(),
        findings,
    );
    // One that could not be read is there, and has a finding of its own.
    if buckets.is_empty() && has_all_buckets && !has_new_buckets {
        root.missing(
            "bucket",
            "expected a section `[bucket.NAME]`, or `[new_buckets]` for those that clients create",
            findings,
        );
    }
    if keys.is_empty() && has_all_keys {
        root.missing("key", "expected a section `[key.NAME]` with `id` and `secret_file`: without one nobody can sign a request", findings);
    }
    let config = GatewayConfig {
        // Sections that can't be read end it only here: one run lists the mistakes of all of them.
        listen: listen?,
        hosts,
        region,
        tls,
        local: local?,
        limits,
        s3,
        buckets,
        new_buckets,
        keys,
        admin,
        access_log,
        cluster,
    };
    let span = bucket_field.map_or_else(|| root.span.clone(), |field| field.key_span);
    super::apart::check(&config, &span, findings);
    Some(config)
}

fn address(field: &Field<'_>, findings: &mut Diagnostics) -> Option<SocketAddr> {
    let text = field.text("an address such as \"127.0.0.1:9000\"", findings)?;
    let address = text.value.parse().ok();
    if address.is_none() {
        field.invalid(
            "expected an IP address and a port, such as \"127.0.0.1:9000\" or \"[::1]:9000\"",
            findings,
        );
    }
    address
}

/// Names of hosts, without a port: clients may use any that leads here.
fn hosts(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<String> {
    let is_name = |text: &str| {
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        text.len() <= 253 && text.split('.').all(is_label) && text.parse::<std::net::IpAddr>().is_err()
    };
    let read = |element: &Field<'_>, findings: &mut Diagnostics| {
        let host = element.text("the name of a host", findings)?;
        if is_name(&host.value) {
            return Some(host);
        }
        element.invalid("expected the name of a host without a port, such as \"gateway.example\"", findings);
        None
    };
    field.list(findings, read).into_iter().map(|host| host.value.to_ascii_lowercase()).collect()
}

fn region(field: &Field<'_>, findings: &mut Diagnostics) -> Option<String> {
    let region = field.text("a region such as \"us-east-1\"", findings)?;
    if region.value.parse::<s3s::region::Region>().is_ok() {
        return Some(region.value);
    }
    field.invalid("expected lowercase letters, digits and hyphens, such as \"us-east-1\"", findings);
    None
}

/// Two of our own ports can't be one: whichever is taken second would say that it is in use, at each start.
fn same_addresses(
    addresses: [(&str, Option<SocketAddr>); 4],
    span: std::ops::Range<usize>,
    findings: &mut Diagnostics,
) {
    let configured: Vec<(&str, SocketAddr)> =
        addresses.into_iter().filter_map(|(name, address)| Some((name, address?))).collect();
    for (place, (name, one)) in configured.iter().enumerate() {
        for (other_name, other) in &configured[place + 1..] {
            let meet = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
            // The kernel chooses another one for each 0.
            if meet && one.port() == other.port() && one.port() != 0 {
                let message = format!("{name} and {other_name} are the same port, {}", one.port());
                findings.push(Diagnostic::error(span.clone(), message, "expected a port for each"));
            }
        }
    }
}

fn path(field: &Field<'_>, findings: &mut Diagnostics) -> Option<PathBuf> {
    let text = field.text("an absolute path", findings)?;
    let path = PathBuf::from(text.value);
    if path.is_absolute() {
        return Some(path);
    }
    field.invalid("expected an absolute path: the gateway may be started from anywhere", findings);
    None
}

fn tls(field: &Field<'_>, findings: &mut Diagnostics) -> Option<TlsConfig> {
    let mut section = field.section("[tls]", findings)?;
    let certificate = section
        .require("certificate", "certificate = \"/etc/ssl/gateway.pem\"", findings)
        .and_then(|field| path(&field, findings));
    let key = section
        .require("key", "key = \"/etc/ssl/gateway.key\"", findings)
        .and_then(|field| path(&field, findings));
    section.finish(findings);
    Some(TlsConfig { certificate: certificate?, key: key? })
}

fn local(field: &Field<'_>, findings: &mut Diagnostics) -> Option<LocalConfig> {
    let mut section = field.section("[local]", findings)?;
    let directory = section
        .require("directory", "directory = \"/var/lib/underlay-gateway\"", findings)
        .and_then(|field| path(&field, findings));
    let [journal, memory, cache, metadata] =
        section.take_each(["journal", "memory", "cache", "metadata_memory"]);
    let encryption = secret_of(&mut section, ["encryption_key_env", "encryption_key_file"], findings);
    let block = section.take("block").and_then(|field| {
        let bytes = field.bytes(findings)?;
        if bytes.value.is_power_of_two() && (64 << 10..=16 * MIB).contains(&bytes.value) {
            return Some(bytes.value);
        }
        field.invalid("expected a power of two from \"64 KiB\" to \"16 MiB\"", findings);
        None
    });
    section.finish(findings);
    let block_bytes = block.unwrap_or(MIB);
    // Below its least size each would be there and hold nothing.
    let least_cache = MIN_REGIONS * region_bytes(block_bytes);
    let mut size = |field: &Option<Field<'_>>, default: u64, least: u64| {
        let Some((field, bytes)) = field.as_ref().and_then(|field| Some((field, field.bytes(findings)?)))
        else {
            return default;
        };
        if bytes.value < least {
            field.invalid(format!("expected at least \"{}\"", format_bytes(least)), findings);
        }
        bytes.value
    };
    let journal_bytes = size(&journal, 8 * GIB, MIN_JOURNAL_BYTES);
    let memory_bytes = size(&memory, GIB, MIN_MEMORY_BLOCKS * block_bytes);
    let flash_bytes = size(&cache, 0, least_cache);
    let metadata_bytes = size(&metadata, 256 * MIB, MIB);
    Some(LocalConfig {
        directory: directory?,
        journal_bytes,
        memory_bytes,
        flash_bytes,
        block_bytes,
        metadata_bytes,
        encryption,
    })
}

fn limits(field: Option<&Field<'_>>, findings: &mut Diagnostics) -> GatewayLimits {
    let mut limits = GatewayLimits {
        connections: 1024,
        requests: 256,
        patience: Duration::from_secs(30),
        flushes: 8,
        uploads_expire: UPLOADS_EXPIRE,
        drain: Duration::from_secs(60),
    };
    let Some(mut section) = field.and_then(|field| field.section("[limits]", findings)) else {
        return limits;
    };
    let mut count = |key: &'static str, most: u32, target: &mut usize| {
        if let Some(count) = section.take(key).and_then(|field| field.count(1..=most, findings)) {
            *target = count.value as usize;
        }
    };
    count("connections", 100_000, &mut limits.connections);
    count("requests", 10_000, &mut limits.requests);
    count("flushes", 256, &mut limits.flushes);
    for (key, target) in [("patience", &mut limits.patience), ("drain", &mut limits.drain)] {
        if let Some(duration) = section.take(key).and_then(|field| field.duration(true, findings)) {
            *target = duration.value;
        }
    }
    if let Some(expire) = section.take("uploads_expire").and_then(|field| field.duration(false, findings)) {
        limits.uploads_expire = expire.value;
    }
    section.finish(findings);
    limits
}

fn s3(field: Option<&Field<'_>>, findings: &mut Diagnostics) -> S3Endpoint {
    let mut endpoint = S3Endpoint {
        url: None,
        authority: None,
        region: "us-east-1".to_owned(),
        has_virtual_hosts: false,
        key_id: None,
        secret: None,
    };
    // No [s3] is no mistake: stores in directories have no use for it.
    let Some(field) = field else { return endpoint };
    let Some(mut section) = field.section("[s3]", findings) else { return endpoint };
    if let Some(field) = section.take("endpoint")
        && let Some(url) = field.text("a URL such as \"https://s3.example.com\"", findings)
    {
        match url.value.starts_with("http://") || url.value.starts_with("https://") {
            true => endpoint.url = Some(url.value),
            false => field.invalid("expected a URL that begins with https:// or http://", findings),
        }
    }
    if let Some(field) = section.take("authority") {
        endpoint.authority = path(&field, findings);
        if endpoint.url.as_deref().is_some_and(|url| url.starts_with("http://")) {
            field.invalid(
                "only a store by https:// shows a certificate: write `endpoint` so, or remove this key",
                findings,
            );
        }
    }
    if let Some(region) = section.take("region").and_then(|field| field.text("a region", findings)) {
        endpoint.region = region.value;
    }
    endpoint.has_virtual_hosts =
        section.take("virtual_hosts").and_then(|field| field.boolean(findings)).unwrap_or(false);
    endpoint.key_id =
        section.take("key_id").and_then(|field| field.text("an access key", findings)).map(|id| id.value);
    endpoint.secret = secret(&mut section, findings);
    // By what is written, since a half that could not be read is there.
    let has_secret = section.has("secret_env") || section.has("secret_file");
    if section.has("key_id") != has_secret {
        let label = "expected `key_id` with `secret_env` or `secret_file`, or neither";
        findings.push(Diagnostic::error(
            section.span.clone(),
            "[s3] has only a half of its access key",
            label,
        ));
    }
    section.finish(findings);
    endpoint
}

fn secret(section: &mut Section<'_>, findings: &mut Diagnostics) -> Option<SecretPlace> {
    if section.has("secret") {
        let label = "write it into a file (`secret_file`) or the environment (`secret_env`)";
        let message = format!("a secret has no place in {}", section.title);
        findings.push(Diagnostic::error(section.span.clone(), message, label));
    }
    secret_of(section, ["secret_env", "secret_file"], findings)
}

/// By one of two keys: the name of a variable, or a file.
fn secret_of(
    section: &mut Section<'_>,
    keys: [&'static str; 2],
    findings: &mut Diagnostics,
) -> Option<SecretPlace> {
    let [env, file] = section.take_each(keys);
    match (env, file) {
        (Some(env), None) => {
            env.text("the name of a variable", findings).map(|name| SecretPlace::Environment(name.value))
        }
        (None, Some(file)) => path(&file, findings).map(SecretPlace::File),
        (Some(env), Some(_)) => {
            env.invalid(format!("expected `{}` or `{}`, not both", keys[0], keys[1]), findings);
            None
        }
        (None, None) => None,
    }
}

/// `[GROUP.NAME]`, by names that may have dots.
fn named<'a>(
    field: &Field<'a>,
    group: &str,
    findings: &mut Diagnostics,
) -> Vec<(Spanned<String>, Section<'a>)> {
    let Some(mut all) = field.section(format!("[{group}]"), findings) else { return Vec::new() };
    let mut sections = Vec::new();
    for field in all.take_rest() {
        let Some(mut section) = field.section(format!("[{group}.{}]", field.key), findings) else { continue };
        section.span = field.key_span.clone();
        sections.push((Spanned::new(field.key, field.key_span), section));
    }
    sections
}

fn buckets(field: Option<&Field<'_>>, findings: &mut Diagnostics) -> Vec<BucketConfig> {
    let Some(field) = field else { return Vec::new() };
    let mut buckets = Vec::new();
    for (name, mut section) in named(field, "bucket", findings) {
        if !s3s::path::check_bucket_name(&name.value) {
            let message = format!("`{}` is not a valid name of a bucket", name.value.escape_debug());
            let label = "expected 3 to 63 lowercase letters, digits, hyphens and dots";
            findings.push(Diagnostic::error(name.span.clone(), message, label));
        }
        let store = section
            .require("store", "store = \"s3://my-bucket\"` or `store = \"/srv/objects\"", findings)
            .and_then(|field| store(&field, findings));
        let mut rules = vec![rule(&mut section, String::new(), findings)];
        for element in section.take("prefix").map(|field| field.elements()).unwrap_or_default() {
            let title = format!("[[bucket.{}.prefix]]", name.value);
            let Some(mut inner) = element.section(title, findings) else { continue };
            let prefix = inner
                .require("prefix", "prefix = \"raw/\"", findings)
                .and_then(|field| field.text("the beginning of keys", findings));
            let Some(prefix) = prefix else { continue };
            if prefix.value.is_empty() || rules.iter().any(|rule| rule.prefix == prefix.value) {
                let label = "expected a prefix that has no rule yet; the empty one is the bucket's own";
                findings.push(Diagnostic::error(prefix.span, "a prefix has one rule", label));
                continue;
            }
            rules.push(rule(&mut inner, prefix.value, findings));
            inner.finish(findings);
        }
        section.finish(findings);
        // The longest prefix decides.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.prefix.len()));
        if let Some(store) = store {
            buckets.push(BucketConfig { name: name.value, store, rules });
        }
    }
    overlapping(&buckets, field, findings);
    buckets
}

/// Whether one is within the other, or both are the same.
fn is_over_same(one: &StorePlace, other: &StorePlace) -> bool {
    match (one, other) {
        (StorePlace::Directory(a), StorePlace::Directory(b)) => super::apart::are_nested(a, b),
        (StorePlace::S3 { bucket: a, prefix: p }, StorePlace::S3 { bucket: b, prefix: q }) => {
            let below = |p: &str| match p.trim_matches('/') {
                "" => String::new(),
                p => format!("{p}/"),
            };
            a == b && (below(p).starts_with(&below(q)) || below(q).starts_with(&below(p)))
        }
        _ => false,
    }
}

/// Two buckets over the same objects would each believe to be alone.
fn overlapping(buckets: &[BucketConfig], field: &Field<'_>, findings: &mut Diagnostics) {
    for (index, bucket) in buckets.iter().enumerate() {
        for other in &buckets[index + 1..] {
            if is_over_same(&bucket.store, &other.store) {
                let message =
                    format!("[bucket.{}] and [bucket.{}] are over the same objects", bucket.name, other.name);
                findings.push(Diagnostic::error(field.key_span.clone(), message, NOT_WITHIN));
            }
        }
    }
}

fn store(field: &Field<'_>, findings: &mut Diagnostics) -> Option<StorePlace> {
    let text = field.text("\"s3://bucket/prefix\" or a directory", findings)?;
    let place = StorePlace::parse(&text.value);
    if place.is_none() {
        field.invalid(
            "expected \"s3://bucket\", \"s3://bucket/prefix\" or an absolute path of a directory",
            findings,
        );
    }
    place
}

fn rule(section: &mut Section<'_>, prefix: String, findings: &mut Diagnostics) -> PrefixRule {
    let [write, after, consistency, ttl] = section.take_each(["write", "flush_after", "consistency", "ttl"]);
    let flush_after = after.as_ref().and_then(|field| field.duration(true, findings));
    let written = write.as_ref().and_then(|field| field.word(&["through", "back"], findings));
    let is_back = written.as_ref().is_some_and(|word| word.value == "back");
    let is_known = write.is_some() == written.is_some();
    if let (Some(field), true, false) = (&after, is_known, is_back) {
        field.invalid("only `write = \"back\"` flushes later: add it, or remove this key", findings);
    }
    let read =
        consistency.as_ref().and_then(|field| field.word(&["exclusive", "ttl", "revalidate"], findings));
    let is_known = consistency.is_some() == read.is_some();
    let word = read.map_or("exclusive", |word| word.value);
    let for_how_long = ttl.as_ref().and_then(|field| field.duration(false, findings));
    let consistency_read = match word {
        "ttl" => StoreConsistency::Ttl(for_how_long.map_or(Duration::from_secs(10), |ttl| ttl.value)),
        "revalidate" => StoreConsistency::Revalidate,
        _ => StoreConsistency::Exclusive,
    };
    if let (Some(field), true, false) = (&ttl, is_known, word == "ttl") {
        field.invalid("only `consistency = \"ttl\"` has one: add it, or remove this key", findings);
    }
    if is_back
        && word != "exclusive"
        && let Some(field) = &write
    {
        field.invalid(
            "expected \"through\": where others write too, the gateway can't acknowledge writes that the store lacks",
            findings,
        );
    }
    let write = match is_back {
        true => WriteMode::Back { after: flush_after.map_or(FLUSH_AFTER, |after| after.value) },
        false => WriteMode::Through,
    };
    PrefixRule { prefix, write, consistency: consistency_read }
}

fn new_buckets(field: &Field<'_>, findings: &mut Diagnostics) -> Option<NewBuckets> {
    let mut section = field.section("[new_buckets]", findings)?;
    let under = section
        .require("store", "store = \"/srv/objects\"", findings)
        .and_then(|field| store(&field, findings));
    let rule = rule(&mut section, String::new(), findings);
    section.finish(findings);
    Some(NewBuckets { under: under?, rule })
}

/// `buckets` are all that there are, if they could be read.
fn keys(
    field: Option<&Field<'_>>,
    buckets: Option<&[BucketConfig]>,
    has_new_buckets: bool,
    findings: &mut Diagnostics,
) -> Vec<AccessKey> {
    let Some(field) = field else { return Vec::new() };
    let mut keys: Vec<AccessKey> = Vec::new();
    for (name, mut section) in named(field, "key", findings) {
        let id = section
            .require("id", "id = \"ANALYTICS\"", findings)
            .and_then(|field| field.text("an access key", findings));
        let secret = secret(&mut section, findings);
        if secret.is_none() && !section.has("secret_env") && !section.has("secret_file") {
            section.missing("secret_file", "expected `secret_file` or `secret_env` here", findings);
        }
        let mut grants = Vec::new();
        match section.take("allow") {
            Some(field) => {
                for element in field.one_or_many(findings) {
                    grants.extend(grant(&element, &name.value, (buckets, has_new_buckets), findings));
                }
            }
            None => section.missing(
                "allow",
                "expected its permissions, as in `allow = [{ bucket = \"lake\", may = [\"read\", \"write\"] }]`",
                findings,
            ),
        }
        section.finish(findings);
        let (Some(id), Some(secret)) = (id, secret) else { continue };
        // A signature names its key in a text that is split at slashes.
        let is_id = (3..=128).contains(&id.value.len())
            && id.value.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if !is_id {
            let label = "expected an id of 3 to 128 letters, digits, hyphens and underscores";
            findings.push(Diagnostic::error(id.span.clone(), "not the id of an access key", label));
        }
        if keys.iter().any(|key| key.id == id.value) {
            findings.push(Diagnostic::error(
                id.span,
                "another key has this id",
                "expected one that is not taken",
            ));
        }
        // Also one with a mistake: the keys behind it are still compared with its id.
        keys.push(AccessKey { name: name.value, id: id.value, secret, grants });
    }
    keys
}

fn grant(
    field: &Field<'_>,
    key: &str,
    (buckets, has_new_buckets): (Option<&[BucketConfig]>, bool),
    findings: &mut Diagnostics,
) -> Option<KeyGrant> {
    let mut section = field.section(format!("`allow` in [key.{key}]"), findings)?;
    let bucket = section
        .require("bucket", "bucket = \"lake\"` or `bucket = \"*\"", findings)
        .and_then(|field| field.text("the name of a bucket", findings));
    let prefix = section.take("prefix").and_then(|field| field.text("the beginning of keys", findings));
    let (mut read, mut write) = (false, false);
    match section.take("may") {
        Some(field) => {
            for word in field.list(findings, |element, findings| element.word(&["read", "write"], findings)) {
                read |= word.value == "read";
                write |= word.value == "write";
            }
        }
        None => section.missing("may", "expected `may = [\"read\", \"write\"]`", findings),
    }
    section.finish(findings);
    let bucket = bucket?;
    if let Some(buckets) = buckets
        && bucket.value != "*"
        && !buckets.iter().any(|other| other.name == bucket.value)
    {
        let note = format!("no section [bucket.{}] here", bucket.value);
        let label = match has_new_buckets {
            true => "right if a client is to create it",
            false => "nobody can create it without [new_buckets]: is the name right?",
        };
        findings.push(Diagnostic::note(bucket.span, note, label));
    }
    let bucket = (bucket.value != "*").then_some(bucket.value);
    Some(KeyGrant { bucket, prefix: prefix.map_or_else(String::new, |prefix| prefix.value), read, write })
}

fn admin(field: Option<&Field<'_>>, findings: &mut Diagnostics) -> AdminConfig {
    let mut admin =
        AdminConfig { listen: SocketAddr::from(([127, 0, 0, 1], 9001)), health: None, token: None };
    let Some(mut section) = field.and_then(|field| field.section("[admin]", findings)) else { return admin };
    if let Some(field) = section.take("listen")
        && let Some(listen) = address(&field, findings)
    {
        match listen.ip().is_loopback() {
            true => admin.listen = listen,
            false => {
                field.invalid(
                    "expected a loopback address: its answers are not for the network; probes from other hosts use `health_listen`",
                    findings,
                )
            }
        }
    }
    admin.health = section.take("health_listen").and_then(|field| address(&field, findings));
    admin.token = section.take("token_file").and_then(|field| path(&field, findings));
    section.finish(findings);
    admin
}

#[cfg(test)]
mod tests {
    use crate::config::GatewayConfig;

    /// What is found in a configuration with these sections.
    fn found(bucket: &str, rest: &str) -> String {
        let text = format!(
            "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"/var/lib/gateway\"\n\
             [bucket.lake]\n{bucket}\n{rest}\n"
        );
        GatewayConfig::parse("gateway.toml", &text)
            .map_or_else(|findings| findings.to_string(), |_| String::new())
    }

    #[test]
    fn misread_sections_are_not_reported_as_missing() {
        let key = "[key.test]\nid = \"TEST\"\nsecret_env = \"SECRET\"\n\
                   allow = [{ bucket = \"lake\", may = [\"read\"] }]";
        let sound = "store = \"/srv/objects\"";
        assert_eq!(found(sound, key), "");
        // One mistake each, and no other that follows from it.
        for (bucket, rest) in [
            ("store = \"srv/objects\"", key.to_owned()),
            (sound, key.replace("\"SECRET\"", "5")),
            (&format!("{sound}\nwrite = \"bakc\"\nflush_after = \"5 s\""), key.to_owned()),
            (&format!("{sound}\nconsistency = \"tll\"\nttl = \"5 s\""), key.to_owned()),
            (sound, format!("{key}\n[s3]\nkey_id = 5\nsecret_env = \"STORE\"")),
            (sound, format!("{key}\n[s3]\nkey_id = \"STORE\"\nsecret_file = \"relative\"")),
        ] {
            let findings = found(bucket, &rest);
            assert!(findings.ends_with("gateway.toml: 1 error"), "{bucket}\n{rest}: {findings}");
        }
        // What is not there is still missing.
        for (rest, message) in [
            ("", "[key.NAME]"),
            (&format!("{key}\n[s3]\nkey_id = \"STORE\""), "only a half of its access key"),
        ] {
            assert!(found(sound, rest).contains(message), "{rest}");
        }
    }
}
