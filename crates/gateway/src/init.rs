//! `init`: a directory with a small configuration and a secret, so that a first bucket is two commands away. What it
//! writes is read back by the program's own reader first; nothing that is there is overwritten.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use underlay_config::units::format_bytes;
use underlay_files::shell::word;
use underlay_files::{Access, Folder};

use crate::config::{GatewayConfig, MachineSizes, StorePlace};
use crate::failure::CommandFailure;
use crate::s3::refused_bucket_name;

const CONFIG: &str = "gateway.toml";
const SECRET: &str = "client.secret";
const OBJECTS: &str = "objects";
const LOCAL: &str = "local";
/// What a client calls the key.
const KEY_ID: &str = "CLIENT";
/// As many bytes as AWS' own secrets stand for.
const SECRET_BYTES: usize = 30;

/// What the configuration is to say.
#[derive(Debug, Args)]
pub(crate) struct InitOptions {
    /// Made where it is not there, for your user alone
    directory: PathBuf,
    /// The name of the bucket that clients see
    #[arg(long, default_value = "lake")]
    bucket: String,
    /// Where clients connect
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9000", value_parser = address)]
    listen: SocketAddr,
    /// Where health and metrics are, on loopback
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9001", value_parser = address)]
    admin: SocketAddr,
    /// Where objects are stored: s3://BUCKET/PREFIX, or a directory that is there. Otherwise DIRECTORY/objects
    #[arg(long, value_name = "PLACE")]
    store: Option<String>,
    /// URL of the S3 store; AWS if left out
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Of the S3 store; us-east-1 if left out
    #[arg(long)]
    region: Option<String>,
    /// The id of the gateway's own key at the S3 store; this machine's identity (instance metadata) if left out
    #[arg(long, value_name = "ID", requires = "store_secret_file")]
    store_key_id: Option<String>,
    /// A file with the secret of that key, which only you can read
    #[arg(long, value_name = "FILE", requires = "store_key_id")]
    store_secret_file: Option<PathBuf>,
}

/// Writes it all, and returns what there is to say.
///
/// # Errors
/// A mistake where the wishes make no configuration or something is there already; otherwise what the disk says.
pub(crate) fn init(wishes: &InitOptions) -> Result<String, CommandFailure> {
    let directory = std::path::absolute(&wishes.directory)
        .map_err(|error| CommandFailure::Mistake(format!("{}: {error}", wishes.directory.display())))?;
    // Somebody's own files must not become a bucket, nor an old gateway's journal this one's.
    let objects = wishes.store.is_none().then_some(OBJECTS);
    for name in [CONFIG, SECRET, LOCAL].into_iter().chain(objects) {
        let place = directory.join(name);
        if place.symlink_metadata().is_ok() {
            return Err(CommandFailure::Mistake(format!(
                "{} is there already, and nothing is overwritten\n  what to do: name another directory, or start what is there with `underlay-gateway serve {}`",
                place.display(),
                word(&directory.join(CONFIG).display().to_string())
            )));
        }
    }
    let text = configuration(wishes, &directory)?;
    // What it can't read itself it does not write.
    let config = GatewayConfig::parse(CONFIG, &text).map_err(|findings| {
        CommandFailure::Mistake(format!("these options make no configuration:\n{findings}"))
    })?;
    check_store(wishes, &config)?;
    if let Some(reason) = refused_bucket_name(&wishes.bucket) {
        return Err(CommandFailure::Mistake(format!("--bucket {}: {reason}", word(&wishes.bucket))));
    }
    let mut made = MadeHere::look(&directory);
    write_all(wishes, &directory, &text, &mut made).inspect_err(|_| made.remove())?;
    Ok(next_steps(wishes, &directory))
}

/// What this call has made: a call that fails leaves nothing that would be in the way of the next one.
struct MadeHere {
    /// The directories that were missing, the innermost first.
    directories: Vec<PathBuf>,
    folder: Option<Folder>,
    files: Vec<&'static str>,
    has_objects: bool,
}

impl MadeHere {
    /// Before anything is made.
    fn look(directory: &Path) -> MadeHere {
        let is_missing = |place: &&Path| {
            place.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let directories = directory.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        MadeHere { directories, folder: None, files: Vec::new(), has_objects: false }
    }

    /// What can't be removed, or is not empty, stays: somebody else may have come in between.
    fn remove(&self) {
        if let Some(folder) = &self.folder {
            for name in &self.files {
                let _ = folder.remove_if_there(name);
            }
            if self.has_objects {
                let _ = folder.remove_empty(OBJECTS);
            }
        }
        for directory in &self.directories {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

fn write_all(
    wishes: &InitOptions,
    directory: &Path,
    configuration: &str,
    made: &mut MadeHere,
) -> Result<(), CommandFailure> {
    let failed = |name: &str, error: &std::io::Error| {
        CommandFailure::Failed(format!("{}: {error}", directory.join(name).display()))
    };
    let folder = Folder::make(directory, Access::Private).map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            CommandFailure::Failed(format!("{}: {error}", directory.display()))
        }
        _ => CommandFailure::Mistake(format!("{}: {error}", directory.display())),
    })?;
    let folder = made.folder.insert(folder);
    if wishes.store.is_none() {
        made.has_objects = !folder.has(OBJECTS);
        folder.make_inner(OBJECTS, Access::Private).map_err(|error| failed(OBJECTS, &error))?;
    }
    let mut random = [0; SECRET_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| CommandFailure::Failed(format!("no random numbers: {error}")))?;
    let secret = format!("{}\n", base16ct::lower::encode_string(&random));
    // The configuration last: it names all the others.
    for (name, content) in [(SECRET, secret.as_str()), (CONFIG, configuration)] {
        folder.write_new(name, content.as_bytes()).map_err(|error| failed(name, &error))?;
        made.files.push(name);
    }
    Ok(())
}

fn configuration(wishes: &InitOptions, directory: &Path) -> Result<String, CommandFailure> {
    let machine = MachineSizes::look(directory);
    let path = |name: &str| quoted_path(&directory.join(name));
    let mut s3 = String::new();
    if let Some(url) = &wishes.endpoint {
        s3.push_str(&format!("endpoint = {}\n", quoted(url)));
    }
    if let Some(region) = &wishes.region {
        s3.push_str(&format!("region = {}\n", quoted(region)));
    }
    if let (Some(id), Some(file)) = (&wishes.store_key_id, &wishes.store_secret_file) {
        let file = std::path::absolute(file)
            .map_err(|error| CommandFailure::Mistake(format!("{}: {error}", file.display())))?;
        s3.push_str(&format!("key_id = {}\nsecret_file = {}\n", quoted(id), quoted_path(&file)?));
    }
    if !s3.is_empty() {
        s3.insert_str(0, "\n[s3]                        # how the store is reached\n");
    }
    let store = match &wishes.store {
        // A directory by a relative path is meant from here.
        Some(place) if !place.starts_with("s3:") => quoted_path(
            &std::path::absolute(place)
                .map_err(|error| CommandFailure::Mistake(format!("{place}: {error}")))?,
        )?,
        Some(place) => quoted(place),
        None => path(OBJECTS)?,
    };
    let (bucket, local, secret) = (quoted(&wishes.bucket), path(LOCAL)?, path(SECRET)?);
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_bare = !wishes.bucket.is_empty() && wishes.bucket.chars().all(is_bare);
    let section = if is_bare { &wishes.bucket } else { &bucket };
    Ok(format!(
        "# Written by `underlay-gateway init`. docs/gateway-configuration.md has all settings.\n\
         listen = \"{listen}\"   # where clients connect\n\n\
         [local]\n\
         directory = {local}\n\
         journal = \"{journal}\"           # limit of bytes that are acknowledged and not in the store yet\n\
         memory = \"{memory}\"          # of blocks in memory\n\
         {s3}\n\
         [bucket.{section}]\n\
         store = {store}\n\
         write = \"back\"              # acknowledged once it is durable here, and stored some seconds later\n\n\
         [key.client]\n\
         id = \"{KEY_ID}\"\n\
         secret_file = {secret}\n\
         allow = [{{ bucket = {bucket}, may = [\"read\", \"write\"] }}]\n\n\
         [admin]\n\
         listen = \"{admin}\"   # health and metrics\n",
        listen = wishes.listen,
        admin = wishes.admin,
        journal = format_bytes(machine.fitting_journal()),
        memory = format_bytes(machine.fitting_memory()),
    ))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an IP address and a port, such as 127.0.0.1:9000".to_owned())
}

/// Mistakes that a start would find at once: a directory that is missing or not ours, an unusable secret.
fn check_store(wishes: &InitOptions, config: &GatewayConfig) -> Result<(), CommandFailure> {
    let named = wishes.endpoint.is_some() || wishes.region.is_some() || wishes.store_key_id.is_some();
    if wishes.store.as_ref().is_some_and(|store| store.contains("://") && !store.starts_with("s3://")) {
        return Err(CommandFailure::Mistake(
            "--store is s3://BUCKET/PREFIX or a directory; the URL of an S3 server is --endpoint".to_owned(),
        ));
    }
    match config.buckets.first().map(|bucket| &bucket.store) {
        Some(StorePlace::Directory(_)) if named => Err(CommandFailure::Mistake(
            "--endpoint, --region and --store-key-id are for --store s3://BUCKET".to_owned(),
        )),
        Some(StorePlace::Directory(place)) if wishes.store.is_some() => match Folder::open(place) {
            Ok(_) => Ok(()),
            Err(error) => Err(CommandFailure::Mistake(format!("--store {}: {error}", place.display()))),
        },
        _ => match &wishes.store_secret_file {
            Some(file) => underlay_files::read_given_secret(file, 4096).map(drop).map_err(|error| {
                CommandFailure::Mistake(format!("--store-secret-file {}: {error}", file.display()))
            }),
            None => Ok(()),
        },
    }
}

fn next_steps(wishes: &InitOptions, directory: &Path) -> String {
    let shown = |name: &str| word(&directory.join(name).display().to_string()).into_owned();
    let mut reached = wishes.listen;
    if reached.ip().is_unspecified() {
        reached.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let open = match wishes.listen.ip().is_loopback() {
        true => "",
        false => "\nOther hosts can reach it. Without [tls], others can read what they send.\n",
    };
    let (config, secret) = (shown(CONFIG), shown(SECRET));
    let export = format!(
        r#"export AWS_ACCESS_KEY_ID={KEY_ID} AWS_SECRET_ACCESS_KEY="$(cat {secret})" AWS_DEFAULT_REGION=us-east-1"#
    );
    format!(
        "wrote {config}\n\
         wrote {secret}   (the secret of access key {KEY_ID}, for your user alone)\n\n\
         Start the gateway:\n\
         \x20 underlay-gateway serve {config}\n\n\
         In another terminal, with the AWS CLI:\n\
         \x20 {export}\n\
         \x20 aws --endpoint-url http://{reached} s3 cp {config} s3://{bucket}/first\n\
         \x20 aws --endpoint-url http://{reached} s3 ls s3://{bucket}/\n{open}",
        bucket = wishes.bucket,
    )
}

fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string().trim().to_owned()
}

fn quoted_path(path: &Path) -> Result<String, CommandFailure> {
    match path.to_str() {
        Some(text) => Ok(quoted(text)),
        None => Err(CommandFailure::Mistake(format!("{}: expected a path in UTF-8", path.display()))),
    }
}
