//! `POOL.toml`: what a sound one says, and that every file of `broken_pools/` is refused with a message worth reading.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use underlay_config::Diagnostics;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::InitialState;
use underlay_study::spec::read_pool_file;
use underlay_volume::pool_file::{PoolDevices, PoolFile};

fn read(name: &str, text: &str) -> Result<PoolFile, Diagnostics> {
    let none = |_: &str| Err("there are no files here".to_owned());
    read_pool_file(name, text, Path::new("/pools"), &none)
}

#[test]
fn mistakes_are_shown_in_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken_pools");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    assert!(files.len() >= 20, "only {} broken pools", files.len());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("broken_pools_snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for file in files {
            let name = file.into_string().unwrap();
            let text = fs::read_to_string(folder.join(&name)).unwrap();
            let mistakes = read(&name, &text).err().unwrap_or_else(|| panic!("{name} was accepted"));
            assert!(mistakes.has_errors(), "{name} was refused for no mistake");
            insta::assert_snapshot!(name.trim_end_matches(".toml"), mistakes.to_string());
        }
    });
}

#[test]
fn omitted_keys_default_as_documented() {
    let pool = read("p.toml", "name = \"tank\"\ndevices = [{ medium = \"nvme-9300-max\", count = 8 }]\n")
        .unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(pool.listen, "127.0.0.1:4420".parse::<SocketAddr>().unwrap());
    assert_eq!(pool.directory, Path::new("/pools/tank.pool"));
    assert!(matches!(pool.devices, PoolDevices::Modelled { initial: InitialState::Steady, .. }));
    assert_eq!((pool.modelled().len(), pool.volumes.len(), pool.dilation), (8, 0, 1.0));
}

#[test]
fn documented_pool_is_read() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/volumes.md")).unwrap();
    let (_, rest) = page.split_once("```toml\n").expect("the page shows a pool");
    let (text, _) = rest.split_once("```").unwrap();
    let pool = read("volumes.md", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let [data, logs] = pool.volumes.as_slice() else { panic!("{:?}", pool.volumes) };
    assert_eq!(
        (data.name.as_str(), data.spec.compress, data.spec.mirror),
        ("data", Some(CompressionCodec::Lz4), false)
    );
    assert_eq!(logs.spec.limits.iops, Some(20_000));
    assert_eq!(logs.spec.limits.bytes_per_second, Some(400_000_000));
    assert_eq!(
        (logs.admission.hosts.len(), logs.admission.secrets.secret_env.as_deref()),
        (1, Some("LOGS_SECRET"))
    );
}

#[test]
fn real_devices_are_seen_from_the_file() {
    let text = "name = \"real\"\nlisten = \"[::1]:0\"\npaths = [\"/dev/nvme1n1\", \"disk.img\"]\ndirectory = \"/var/lib/x\"\n";
    let pool = read("p.toml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(pool.devices, PoolDevices::Paths(vec!["/dev/nvme1n1".into(), "/pools/disk.img".into()]));
    assert_eq!(pool.directory, Path::new("/var/lib/x"));
    assert!(pool.modelled().is_empty());
}

#[test]
fn partly_read_list_causes_no_further_mistake() {
    let pool = "name = \"tank\"\nlisten = \"[::1]:0\"\n";
    let mirrored = "[volume.data]\ncapacity = \"1 GiB\"\nmirror = true\n";
    let secret = "[volume.data]\ncapacity = \"1 GiB\"\nhosts = [5]\nsecret_env = \"DATA_SECRET\"\n";
    let devices = "devices = [{ medium = \"nvme-9300-max\", count = 2 }]\n";
    for (text, message) in [
        (format!("{pool}paths = [\"/dev/nvme1n1\", 5]\n{mirrored}"), "`paths`"),
        (format!("{pool}{devices}{secret}"), "`hosts`"),
    ] {
        let mistakes =
            read("wrong.toml", &text).err().unwrap_or_else(|| panic!("accepted:\n{text}")).to_string();
        assert!(mistakes.contains(message) && mistakes.ends_with("wrong.toml: 1 error"), "{mistakes}");
    }
}
