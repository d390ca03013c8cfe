//! The cache goes with the metadata. It knows its blocks by the numbers of contents. Older metadata count on from an
//! older number: with metadata of yesterday and the cache of today, new contents would get numbers under which the
//! cache has other bytes.
//!
//! So each start leaves a random number in both. Where they differ, the cache is emptied.

use std::io;

use underlay_files::{Access, Folder};

use crate::errors::{GatewayError, GatewayResult};
use crate::meta::{MetadataCommitter, MetadataStore};

/// Under which the metadata have the number of the last start.
const KEY: &[u8] = b"cache life";
/// The same in the cache's folder.
const FILE: &str = "life";

fn said_in(cache: &Folder) -> Option<u64> {
    u64::from_str_radix(cache.read_text(FILE, 64).ok()?.trim(), 16).ok()
}

/// Removes what the cache has. Anything but a file is not its own.
fn empty(cache: &Folder) -> io::Result<()> {
    for entry in std::fs::read_dir(cache.path())? {
        let entry = entry?;
        if let (true, Some(name)) = (entry.file_type()?.is_file(), entry.file_name().to_str()) {
            cache.remove_if_there(name)?;
        }
    }
    Ok(())
}

/// Empties the cache if it is of another life than the metadata, and begins a new one. Returns its number.
///
/// # Errors
/// When the cache can't be emptied, or the metadata not be written.
pub(super) async fn begin(
    metadata: &MetadataStore,
    committer: &MetadataCommitter,
    cache: &Folder,
) -> GatewayResult<u64> {
    let former = metadata.view()?.number(KEY)?;
    if former.is_none() || said_in(cache) != former {
        empty(cache).map_err(|error| GatewayError::local("cannot empty the cache", error))?;
    }
    let life = getrandom::u64().map_err(|error| GatewayError::local("no random numbers", error))?;
    committer.commit(Vec::new(), move |change| change.set_number(KEY, life)).await?;
    // Where it does not get there, the next start finds another one, and empties the cache.
    if let Err(error) = cache.replace(FILE, Access::Private, format!("{life:016x}").as_bytes()) {
        tracing::debug!("cannot note which metadata the cache belongs to: {error}");
    }
    Ok(life)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::NotedEpoch;

    #[tokio::test]
    async fn cache_of_earlier_life_is_emptied() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let cache = folder.make_inner("cache", Access::Private).unwrap();
        let (path, backup) = (directory.path().join("metadata"), directory.path().join("kept"));
        let (block, inner) = (cache.path().join("block"), cache.path().join("lost+found"));
        std::fs::create_dir(&inner).unwrap();
        let open = async || {
            loop {
                match MetadataStore::open(&path, 1 << 20, NotedEpoch::default()) {
                    Ok(metadata) => return metadata,
                    // The thread of the one before is still closing it.
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
                }
            }
        };
        let start = async || {
            let metadata = open().await;
            let committer = MetadataCommitter::start(metadata.database(), |_| {}).unwrap();
            std::fs::write(&block, "bytes").unwrap();
            let life = begin(&metadata, &committer, &cache).await.unwrap();
            drop((metadata, committer));
            // Once it can be opened again, and is closed by this thread, nobody writes to it.
            drop(open().await);
            (life, block.exists())
        };
        let (first, is_kept) = start().await;
        assert!(!is_kept, "nobody knows whose it is");
        std::fs::copy(&path, &backup).unwrap();
        let (second, is_kept) = start().await;
        assert!(is_kept && second != first);
        // The metadata of yesterday come back, and the cache stays.
        std::fs::copy(&backup, &path).unwrap();
        let (_, is_kept) = start().await;
        assert!(!is_kept && inner.exists());
        let (_, is_kept) = start().await;
        assert!(is_kept);
        std::fs::write(cache.path().join(FILE), "no number").unwrap();
        assert!(!start().await.1);
    }
}
