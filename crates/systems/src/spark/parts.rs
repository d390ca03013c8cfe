//! A cluster's parts: a driver and its workers, above the store that jobs read and write.

use super::NAME;
use super::config::SparkConfig;
use super::memory::{CacheKind, ManagerKind, StoreKind};
use super::servers::worker_name;
use crate::parts::SystemPart;
use crate::system::{StoragePaths, SystemError};
use crate::{ceph, hdfs};

/// The parts of the store, and how many of them, from the end, workers send requests to.
fn store_parts(config: &SparkConfig, paths: &StoragePaths) -> Result<(Vec<SystemPart>, usize), SystemError> {
    let nodes = config.nodes_of_store();
    Ok(match config.kind() {
        StoreKind::Elsewhere => (vec![SystemPart::new("endpoint", "S3 store")], 1),
        StoreKind::Given => (Vec::new(), 0),
        StoreKind::Hdfs => {
            let data: Vec<_> =
                paths.data.iter().map(|path| (path.clone(), hdfs::StorageType::Disk)).collect();
            let datanodes = hdfs::HdfsPlan::on_each(NAME, &data, u32::try_from(nodes).unwrap_or(u32::MAX))?;
            let first = crate::system::first_data_directory(NAME, &paths.data)?;
            let parts = hdfs::parts(paths.roles.get("namenode").unwrap_or(first), &datanodes);
            let all = parts.len();
            (parts, all)
        }
        StoreKind::S3a => {
            let osds = ceph::CephPlan::on_each(NAME, &paths.data, usize::try_from(nodes).unwrap_or(1))?;
            // All by the gateway, the last.
            (ceph::parts(&osds), 1)
        }
    })
}

/// The parts of a cache in front of `store`; workers send requests to all but those in the background.
fn cache_parts(config: &SparkConfig, paths: &StoragePaths, store: &[SystemPart]) -> Vec<SystemPart> {
    let Some(kind) = config.cache else { return Vec::new() };
    let own = paths.roles.get("cache_storage").or_else(|| paths.roles.get("shuffle")).or(paths.data.first());
    let folder = own.map(|storage| storage.join("spark-cache"));
    match kind {
        CacheKind::Gateway => {
            let cache = SystemPart::new("cache", "S3 cache").using(store);
            vec![folder.iter().fold(cache, |cache, folder| cache.keeping("journal and cache", folder))]
        }
        CacheKind::Alluxio => {
            let worker = SystemPart::new("alluxio-worker", "Alluxio worker").using(store);
            let flash = folder.filter(|_| config.cache_flash_bytes.is_some());
            let worker = flash.iter().fold(worker, |worker, folder| worker.keeping("cache", folder));
            let master = SystemPart::new("alluxio-master", "Alluxio master").using(store);
            let storing =
                SystemPart::new("alluxio-job-worker", "Alluxio job worker").using(store).using([&worker]);
            let jobs = SystemPart::new("alluxio-job-master", "Alluxio job master").using([&storing]);
            vec![worker, master, storing.background(), jobs.background()]
        }
    }
}

pub(super) fn parts(paths: &StoragePaths, config: &SparkConfig) -> Vec<SystemPart> {
    if config.master.is_some() {
        return Vec::new();
    }
    let Ok((store, front_count)) = store_parts(config, paths) else { return Vec::new() };
    let shuffle = match paths.roles.get("shuffle") {
        Some(directory) => std::slice::from_ref(directory),
        None => &paths.data,
    };
    let front = &store[store.len() - front_count..];
    let cache = cache_parts(config, paths, front);
    let asked: Vec<SystemPart> = match cache.is_empty() {
        true => front.to_vec(),
        false => cache.iter().filter(|part| !part.is_background).cloned().collect(),
    };
    let place = |name: String, role| SystemPart::new(name, role).keeping_in("shuffle", shuffle).using(&asked);
    let (master, workers) = match config.manager {
        ManagerKind::Standalone => {
            let count = usize::try_from(config.workers).unwrap_or(1);
            let workers: Vec<SystemPart> =
                (0..count).map(|number| place(worker_name(number), "worker")).collect();
            (SystemPart::new("master", "master"), workers)
        }
        ManagerKind::Yarn => {
            let node_manager = place("nodemanager".to_owned(), "NodeManager");
            (SystemPart::new("resourcemanager", "ResourceManager"), vec![node_manager])
        }
    };
    let driver = SystemPart::new("driver", "driver").using(&workers);
    [driver, master.background()].into_iter().chain(workers).chain(cache).chain(store).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_stand_on_the_store_that_the_settings_name() {
        let folder = tempfile::TempDir::new().unwrap();
        let data = ["a", "b"].map(|name| folder.path().join(name));
        data.iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
        let paths = StoragePaths { data: data.to_vec(), ..StoragePaths::default() };
        let parts_of = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            parts(&paths, &SparkConfig::resolve(&settings, None, Some(2)).unwrap())
        };
        let names =
            |parts: &[SystemPart]| parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>().join(" ");
        let on_hdfs = parts_of(&[("workers", "2"), ("datanodes", "3")]);
        assert_eq!(names(&on_hdfs), "driver master worker1 worker2 namenode datanode1 datanode2 datanode3");
        assert_eq!(on_hdfs[0].uses, ["worker1", "worker2"]);
        assert_eq!(on_hdfs[2].uses, ["namenode", "datanode1", "datanode2", "datanode3"]);
        let on_yarn = parts_of(&[("manager", "yarn"), ("datanodes", "1")]);
        assert_eq!(names(&on_yarn), "driver resourcemanager nodemanager namenode datanode1");
        assert_eq!(on_yarn[0].uses, ["nodemanager"]);
        assert_eq!(on_yarn[2].uses, ["namenode", "datanode1"]);
        let on_ceph = parts_of(&[("store", "s3a"), ("committer", "magic")]);
        assert!(names(&on_ceph).ends_with("osd0 osd1 monitor manager gateway"), "{on_ceph:?}");
        let worker = on_ceph.iter().find(|part| part.name == "worker1").unwrap();
        assert_eq!(worker.uses, ["gateway"]);
        let gateway = on_ceph.last().unwrap();
        assert_eq!(gateway.uses, ["osd0", "osd1"]);
        let cached = parts_of(&[("store", "s3a"), ("cache", "gateway")]);
        let part = |name: &str| cached.iter().find(|part| part.name == name).unwrap();
        assert_eq!(
            (&part("worker1").uses, &part("cache").uses),
            (&vec!["cache".to_owned()], &vec!["gateway".to_owned()])
        );
        let alluxio = parts_of(&[("store", "s3a"), ("cache", "alluxio")]);
        let worker = alluxio.iter().find(|part| part.name == "worker1").unwrap();
        assert_eq!(worker.uses, ["alluxio-worker", "alluxio-master"]);
    }
}
