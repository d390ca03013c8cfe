//! Directories that the configuration names, checked before anything is opened. A directory of somebody else's, or
//! something that is no directory, is a mistake in the configuration, and a restart would not help. A missing directory
//! may have to be mounted, so the store reports it.

use std::io::{Error, ErrorKind};
use std::path::Path;

use underlay_files::{Access, Folder};

use crate::config::{GatewayConfig, StorePlace};
use crate::failure::CommandFailure;

/// Makes the local directory where it is missing, and looks whether those that are there are this user's alone.
///
/// # Errors
/// A mistake, where one can't be used as it is.
pub(super) fn check(config: &GatewayConfig) -> Result<(), CommandFailure> {
    let local = &config.local.directory;
    Folder::make(local, Access::Private).map_err(|error| failure("`directory` of [local]", local, &error))?;
    let of_buckets =
        config.buckets.iter().map(|bucket| (format!("`store` of [bucket.{}]", bucket.name), &bucket.store));
    let of_new = config.new_buckets.iter().map(|new| ("`store` of [new_buckets]".to_owned(), &new.under));
    for (name, store) in of_buckets.chain(of_new) {
        if let StorePlace::Directory(place) = store
            && let Err(error) = Folder::open(place)
            && let found @ CommandFailure::Mistake(_) = failure(&name, place, &error)
        {
            return Err(found);
        }
    }
    Ok(())
}

fn failure(name: &str, place: &Path, error: &Error) -> CommandFailure {
    let text = format!("{name}: {}: {error}", place.display());
    match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::AlreadyExists
        | ErrorKind::ReadOnlyFilesystem => CommandFailure::Mistake(text),
        _ => CommandFailure::Failed(text),
    }
}
