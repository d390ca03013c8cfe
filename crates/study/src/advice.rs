//! How many directories to split each device into, so that a system that fills its directories in turn uses the
//! bandwidth of all devices.
//!
//! Such a system (HDFS, a NodeManager) puts about the same amount into each directory. A device whose directories get
//! more than it can take in the time holds up the others. So a storage configuration is as fast as `min(bandwidth of a
//! device / share of the bytes that it gets)`. With one directory per device, that is the bandwidth of the slowest
//! device times the number of devices: the rest of the faster ones is lost.

use underlay_config::units::{self, QuantityError};

/// No device is split into more directories than this: each costs the system threads and scans.
pub const MAX_DIRECTORIES: u32 = 128;
/// Devices that advice can be given for.
pub const MAX_DEVICES: u32 = 1_000;
/// A split that reaches this share of the devices' total bandwidth is not made finer.
const ENOUGH: f64 = 0.97;
/// The slowest device is split into at most this many directories. Devices of different bandwidths need a common
/// measure.
const MAX_OF_THE_SLOWEST: u32 = 8;

/// A number of identical devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCount {
    /// `ssd`
    pub name: String,
    pub count: u32,
    /// Of one device.
    pub bandwidth_bytes_per_s: u64,
}

/// Mistakes in a description of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdviceError {
    #[error("'{text}': expected NAME=COUNT@BANDWIDTH, as in hdd=6@120MB/s")]
    Form { text: String },
    #[error("'{text}': a name has lowercase letters, digits and hyphens, as in ssd-2")]
    Name { text: String },
    #[error("'{text}': expected a number of devices from 1 to {MAX_DEVICES}")]
    Count { text: String },
    #[error("'{text}': {problem}")]
    Bandwidth { text: String, problem: QuantityError },
    #[error("'{text}': a device needs a bandwidth above zero")]
    NoBandwidth { text: String },
    #[error("'{name}' appears twice: give different devices different names")]
    Twice { name: String },
    #[error("{count} devices are too many: advice covers up to {MAX_DEVICES}")]
    TooMany { count: u64 },
    #[error("name some devices, as in hdd=6@120MB/s ssd=1@1300MB/s")]
    None,
}

impl DeviceCount {
    /// Reads `hdd=6@120MB/s`.
    ///
    /// # Errors
    /// Names the part that is not a name, a number or a bandwidth.
    pub fn parse(text: &str) -> Result<DeviceCount, AdviceError> {
        let owned = || text.to_owned();
        let (name, rest) = text.split_once('=').ok_or_else(|| AdviceError::Form { text: owned() })?;
        let (count, bandwidth) = rest.split_once('@').ok_or_else(|| AdviceError::Form { text: owned() })?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(is_name) {
            return Err(AdviceError::Name { text: owned() });
        }
        let count: u32 = count
            .trim()
            .parse()
            .ok()
            .filter(|count| (1..=MAX_DEVICES).contains(count))
            .ok_or_else(|| AdviceError::Count { text: owned() })?;
        let bits_per_s = units::parse_bandwidth(bandwidth)
            .map_err(|problem| AdviceError::Bandwidth { text: owned(), problem })?;
        let bandwidth_bytes_per_s = bits_per_s / 8;
        if bandwidth_bytes_per_s == 0 {
            return Err(AdviceError::NoBandwidth { text: owned() });
        }
        Ok(DeviceCount { name: name.to_owned(), count, bandwidth_bytes_per_s })
    }

    fn bandwidth(&self) -> f64 {
        self.bandwidth_bytes_per_s as f64
    }
}

/// How to split devices.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSplit {
    /// In the order in which they were given.
    pub parts: Vec<AdvicePart>,
    /// The total on all devices.
    pub directories: u32,
    /// The devices' total bandwidth.
    pub bandwidth_bytes_per_s: f64,
    /// The part of it that such a system gets with one directory per device ...
    pub before_bytes_per_s: f64,
    /// ... and with these.
    pub after_bytes_per_s: f64,
}

/// Equal devices and their directories.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvicePart {
    pub devices: DeviceCount,
    /// The number of directories on each device.
    pub directories: u32,
    /// The bandwidth of one directory.
    pub directory_bytes_per_s: f64,
    /// The share of all bytes written that one device gets before and after, 0 to 1.
    pub share_before: f64,
    pub share_after: f64,
}

/// The smallest number of directories with which the devices give nearly all of their bandwidth.
///
/// # Errors
/// When there are no devices, too many, or two with the same name.
pub fn split(devices: &[DeviceCount]) -> Result<DeviceSplit, AdviceError> {
    let count: u64 = devices.iter().map(|one| u64::from(one.count)).sum();
    if count == 0 {
        return Err(AdviceError::None);
    }
    if count > u64::from(MAX_DEVICES) {
        return Err(AdviceError::TooMany { count });
    }
    for (index, one) in devices.iter().enumerate() {
        if devices[..index].iter().any(|other| other.name == one.name) {
            return Err(AdviceError::Twice { name: one.name.clone() });
        }
    }
    let slowest = devices.iter().map(DeviceCount::bandwidth).fold(f64::INFINITY, f64::min);
    let whole: f64 = devices.iter().map(|one| one.bandwidth() * f64::from(one.count)).sum();
    let ones = vec![1; devices.len()];
    let before = aggregate(devices, &ones);
    // The candidate is the slowest device's directories; the others have more in proportion to their speed.
    let mut best = (ones.clone(), before);
    for of_slowest in 1..=MAX_OF_THE_SLOWEST {
        if best.1 >= ENOUGH * whole {
            break;
        }
        let each: Vec<u32> = devices
            .iter()
            .map(|one| {
                let wanted = (f64::from(of_slowest) * one.bandwidth() / slowest).round();
                wanted.clamp(1.0, f64::from(MAX_DIRECTORIES)) as u32
            })
            .collect();
        let reached = aggregate(devices, &each);
        // Finer directories have to be worth it.
        if reached > 1.001 * best.1 {
            best = (each, reached);
        }
    }
    let (each, after) = best;
    let all = |each: &[u32]| {
        devices.iter().zip(each).map(|(one, directories)| one.count * directories).sum::<u32>()
    };
    let (all_before, all_after) = (all(&ones), all(&each));
    let parts = devices
        .iter()
        .zip(&each)
        .map(|(one, &directories)| AdvicePart {
            devices: one.clone(),
            directories,
            directory_bytes_per_s: one.bandwidth() / f64::from(directories),
            share_before: 1.0 / f64::from(all_before),
            share_after: f64::from(directories) / f64::from(all_after),
        })
        .collect();
    Ok(DeviceSplit {
        parts,
        directories: all_after,
        bandwidth_bytes_per_s: whole,
        before_bytes_per_s: before,
        after_bytes_per_s: after,
    })
}

/// The bandwidth of devices whose directories all get the same amount: the first device at its limit holds up the rest.
fn aggregate(devices: &[DeviceCount], directories: &[u32]) -> f64 {
    let all: u32 = devices.iter().zip(directories).map(|(one, each)| one.count * each).sum();
    devices
        .iter()
        .zip(directories)
        .map(|(one, each)| one.bandwidth() * f64::from(all) / f64::from(*each))
        .fold(f64::INFINITY, f64::min)
}

impl DeviceSplit {
    /// The directories to make. Below `root` there is one directory per device, and in it one for each part.
    /// `/data/ssd-0/3` is the third of the first SSD; a device that is not split is `/data/hdd-5` itself.
    pub fn directories_below(&self, root: &str) -> Vec<String> {
        let root = root.trim_end_matches('/');
        let mut all = Vec::new();
        for part in &self.parts {
            for device in 0..part.devices.count {
                let mount = format!("{root}/{}-{device}", part.devices.name);
                match part.directories {
                    1 => all.push(mount),
                    count => all.extend((1..=count).map(|index| format!("{mount}/{index}"))),
                }
            }
        }
        all
    }

    /// The Hadoop properties for these directories: (file, name, value).
    pub fn hadoop_properties(&self, root: &str) -> [(&'static str, &'static str, String); 2] {
        let directories = self.directories_below(root);
        let below = |name: &str| {
            directories.iter().map(|directory| format!("{directory}/{name}")).collect::<Vec<_>>().join(",")
        };
        [
            ("hdfs-site.xml", "dfs.datanode.data.dir", below("hdfs")),
            ("yarn-site.xml", "yarn.nodemanager.local-dirs", below("local")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn devices(texts: &[&str]) -> Vec<DeviceCount> {
        texts.iter().map(|text| DeviceCount::parse(text).unwrap()).collect()
    }

    #[test]
    fn hybrid_split_matches_paper() {
        let split = split(&devices(&["hdd=6@120MB/s", "ssd=1@1300MB/s"])).unwrap();
        let each: Vec<u32> = split.parts.iter().map(|part| part.directories).collect();
        assert_eq!(each, [1, 11], "the paper took 10");
        assert_eq!(split.before_bytes_per_s, 7.0 * 120e6);
        assert!(split.after_bytes_per_s > 0.97 * 2020e6);
        assert_eq!(split.directories_below("/data/").len(), 17);
        assert_eq!(split.directories_below("/")[6], "/ssd-0/1");
    }

    #[test]
    fn equal_devices_are_left_alone() {
        for texts in [&["hdd=11@120MB/s"][..], &["a=2@500 MB/s", "b=3@0.5 GB/s"]] {
            let split = split(&devices(texts)).unwrap();
            assert!(split.parts.iter().all(|part| part.directories == 1));
            assert_eq!(split.before_bytes_per_s, split.after_bytes_per_s);
        }
    }

    #[test]
    fn unlike_bandwidths_have_a_common_measure() {
        let split = split(&devices(&["a=1@200MB/s", "b=1@300MB/s"])).unwrap();
        let each: Vec<u32> = split.parts.iter().map(|part| part.directories).collect();
        assert_eq!(each, [2, 3]);
        assert_eq!(split.after_bytes_per_s, 500e6);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| DeviceCount::parse(text).unwrap_err().to_string();
        for (text, words) in [
            ("", "NAME=COUNT@BANDWIDTH"),
            ("hdd", "NAME=COUNT@BANDWIDTH"),
            ("hdd=6", "NAME=COUNT@BANDWIDTH"),
            ("HDD=6@1MB/s", "lowercase letters"),
            ("=6@1MB/s", "lowercase letters"),
            ("hdd=0@1MB/s", "from 1 to"),
            ("hdd=-1@1MB/s", "from 1 to"),
            ("hdd=9999999999@1MB/s", "from 1 to"),
            ("hdd=1@fast", "number and a unit"),
            ("hdd=1@5 parsecs", "unknown unit"),
            ("hdd=1@0MB/s", "a bandwidth above zero"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
        let twice = split(&devices(&["a=1@1MB/s", "a=2@2MB/s"])).unwrap_err();
        assert_eq!(twice, AdviceError::Twice { name: "a".to_owned() });
        assert_eq!(split(&[]).unwrap_err(), AdviceError::None);
        let many = devices(&["a=1000@1MB/s", "b=1@1MB/s"]);
        assert_eq!(split(&many).unwrap_err(), AdviceError::TooMany { count: 1001 });
    }

    /// The bandwidth of a system that writes equal blocks into its directories in turn, block by block.
    fn compute_by_hand(devices: &[DeviceCount], directories: &[u32]) -> f64 {
        let mut written = Vec::new();
        for (one, &each) in devices.iter().zip(directories) {
            for _ in 0..one.count {
                written.push((one.bandwidth(), each, 0u64));
            }
        }
        let rounds = 10;
        for _ in 0..rounds {
            for device in &mut written {
                for _ in 0..device.1 {
                    device.2 += 1;
                }
            }
        }
        let blocks: u64 = written.iter().map(|device| device.2).sum();
        let seconds = written.iter().map(|device| device.2 as f64 / device.0).fold(0.0, f64::max);
        blocks as f64 / seconds
    }

    proptest! {
        #[test]
        fn split_never_loses_and_reports_gain(
            kinds in prop::collection::vec((1u32..12, 1u64..20_000), 1..5)
        ) {
            let devices: Vec<DeviceCount> = kinds
                .iter()
                .enumerate()
                .map(|(index, (count, mb_s))| DeviceCount {
                    name: format!("kind-{index}"),
                    count: *count,
                    bandwidth_bytes_per_s: mb_s * 1_000_000,
                })
                .collect();
            let found = split(&devices).unwrap();
            let each: Vec<u32> = found.parts.iter().map(|part| part.directories).collect();
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
            prop_assert!(close(found.after_bytes_per_s, compute_by_hand(&devices, &each)));
            prop_assert!(close(found.before_bytes_per_s, compute_by_hand(&devices, &vec![1; devices.len()])));
            prop_assert!(found.after_bytes_per_s >= found.before_bytes_per_s);
            prop_assert!(found.after_bytes_per_s <= found.bandwidth_bytes_per_s * (1.0 + 1e-9));
            prop_assert!(each.iter().all(|one| (1..=MAX_DIRECTORIES).contains(one)));
            let share: f64 = found.parts.iter().map(|part| part.share_after * f64::from(part.devices.count)).sum();
            prop_assert!((share - 1.0).abs() < 1e-9);
            // Nothing is cut off, so only rounding loses anything: half a directory of eight on either side.
            let widest = kinds.iter().map(|kind| kind.1).max().unwrap() / kinds.iter().map(|kind| kind.1).min().unwrap();
            if widest * u64::from(MAX_OF_THE_SLOWEST) < u64::from(MAX_DIRECTORIES) {
                prop_assert!(found.after_bytes_per_s >= 0.88 * found.bandwidth_bytes_per_s);
            }
            prop_assert_eq!(found.directories_below("/data").len() as u32, found.directories);
        }

        #[test]
        fn any_text_is_devices_or_a_mistake(text in ".{0,60}", name in "[a-z-]{0,4}", count in any::<i64>(), rate in ".{0,12}") {
            for text in [text, format!("{name}={count}@{rate}"), format!("{name}={}@{}MB/s", count % 9, count)] {
                match DeviceCount::parse(&text) {
                    Ok(one) => prop_assert!(split(&[one]).is_ok()),
                    Err(error) => prop_assert!(error.to_string().starts_with('\'')),
                }
            }
        }
    }
}
