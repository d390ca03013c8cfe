//! An instance's identity for another start on its storage: the secret of its servers, a password, and where its logs
//! were. The file is kept with the instance's metadata, readable only by this user.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use underlay_files::Access;

use crate::credentials::random_password;

const FILE: &str = "instance";

/// The stages in the life of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceStage {
    /// Its first start has begun.
    Making,
    /// It is running, or was killed.
    Running,
    /// It was shut down cleanly.
    Stopped,
}

const LIVES: [(&str, InstanceStage); 3] = [
    ("making", InstanceStage::Making),
    ("running", InstanceStage::Running),
    ("stopped", InstanceStage::Stopped),
];

#[derive(Clone, PartialEq, Eq)]
pub(super) struct InstanceIdentity {
    pub life: InstanceStage,
    pub secret: String,
    pub password: String,
    pub logs: Vec<PathBuf>,
}

impl std::fmt::Debug for InstanceIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("InstanceIdentity").field("life", &self.life).finish_non_exhaustive()
    }
}

impl InstanceIdentity {
    /// For a new instance.
    pub(super) fn generate() -> io::Result<InstanceIdentity> {
        let (secret, password) = (random_password()?, random_password()?);
        Ok(InstanceIdentity { life: InstanceStage::Making, secret, password, logs: Vec::new() })
    }

    /// Reads the one in `directory`; `None` if there never was an instance.
    pub(super) fn read(directory: &Path) -> io::Result<Option<InstanceIdentity>> {
        match underlay_files::read_text(&directory.join(FILE), 1 << 20) {
            Ok(text) => InstanceIdentity::parse(&text)
                .map(Some)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file is malformed")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the one in `directory` atomically.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        underlay_files::replace(&directory.join(FILE), Access::Private, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let life = LIVES.iter().find(|(_, life)| *life == self.life).map_or("", |(name, _)| name);
        let mut text = format!("life={life}\nsecret={}\npassword={}\n", self.secret, self.password);
        for (number, log) in self.logs.iter().enumerate() {
            text.push_str(&format!("log.{number}={}\n", log.display()));
        }
        text
    }

    fn parse(text: &str) -> Option<InstanceIdentity> {
        let values: BTreeMap<&str, &str> =
            text.lines().map(|line| line.split_once('=')).collect::<Option<_>>()?;
        let life = LIVES.iter().find(|(name, _)| values.get("life") == Some(name))?.1;
        let word = |name: &str| {
            let word = values.get(name).filter(|word| !word.is_empty())?;
            word.chars().all(|letter| letter.is_ascii_hexdigit()).then(|| (*word).to_owned())
        };
        let logs = (0..).map_while(|number: usize| values.get(format!("log.{number}").as_str()));
        Some(InstanceIdentity {
            life,
            secret: word("secret")?,
            password: word("password")?,
            logs: logs.map(PathBuf::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn identity_rereads_as_written() {
        let folder = tempfile::TempDir::new().unwrap();
        assert_eq!(InstanceIdentity::read(folder.path()).unwrap(), None);
        let mut identity = InstanceIdentity::generate().unwrap();
        assert_ne!(identity.secret, identity.password);
        for life in [InstanceStage::Making, InstanceStage::Running, InstanceStage::Stopped] {
            identity.life = life;
            identity.logs.push("/mnt/log/wal".into());
            identity.write(folder.path()).unwrap();
            assert_eq!(InstanceIdentity::read(folder.path()).unwrap().as_ref(), Some(&identity));
        }
        let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{identity:?}").contains(&identity.password));
    }

    #[test]
    fn malformed_identity_is_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        for text in [
            "",
            "x",
            "life=stopped\n",
            "life=x\nsecret=a\npassword=b\n",
            "life=running\nsecret=a b\npassword=b\n",
        ] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            assert!(InstanceIdentity::read(folder.path()).is_err(), "{text:?}");
        }
    }
}
