//! Which controller, and how.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::dialer::StreamDialer;
use super::error::InitiatorError;
use crate::auth::HostSecrets;
use crate::fabrics::NQN_BYTES;
use crate::nqn;
use crate::pdu::Digests;

const KERNEL_HOST_NQN: &str = "/etc/nvme/hostnqn";
const KERNEL_HOST_ID: &str = "/etc/nvme/hostid";
const MACHINE_ID: &str = "/etc/machine-id";
/// More than any machine of ours has a use for.
const MAX_QUEUES: u16 = 64;
const MAX_QUEUE_DEPTH: u16 = 1024;

/// The limit of kept writes that no flush has covered. When there is more, a flush is sent that nobody asked for; at
/// twice as much, what is in flight included, further writes wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedLimits {
    pub bytes: usize,
    /// Discards have no data.
    pub commands: usize,
}

impl Default for UnflushedLimits {
    fn default() -> UnflushedLimits {
        UnflushedLimits { bytes: 64 << 20, commands: 16 << 10 }
    }
}

#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// `127.0.0.1:4420`
    pub address: String,
    pub subsystem_nqn: String,
    pub host_nqn: String,
    /// The same for all connections of a host.
    pub host_id: [u8; 16],
    /// I/O queues, each a connection; the controller may allow fewer.
    pub queues: u16,
    /// Commands that a queue may have in flight; the controller may allow fewer.
    pub queue_depth: u16,
    /// Asked for; the controller may not have them.
    pub digests: Digests,
    /// After this long without a sign of the host the controller gives it up, and the other way round. Zero
    /// is never.
    pub keep_alive_timeout: Duration,
    /// How long a connection, or the answer to a command that makes one, is waited for.
    pub connect_timeout: Duration,
    /// How long to try to reconnect before requests fail; with zero they fail at once.
    pub loss_timeout: Duration,
    pub unflushed: UnflushedLimits,
    /// For DH-HMAC-CHAP, where the subsystem asks for it.
    pub secrets: Option<HostSecrets>,
    /// TCP, unless told.
    pub dialer: StreamDialer,
}

impl ControllerOptions {
    /// Two queues of 128 commands, and the times of the kernel's initiator.
    pub fn new(address: impl Into<String>, subsystem_nqn: impl Into<String>) -> ControllerOptions {
        ControllerOptions {
            address: address.into(),
            subsystem_nqn: subsystem_nqn.into(),
            host_nqn: String::new(),
            host_id: [0; 16],
            queues: 2,
            queue_depth: 128,
            digests: Digests::default(),
            keep_alive_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            loss_timeout: Duration::from_secs(600),
            unflushed: UnflushedLimits::default(),
            secrets: None,
            dialer: StreamDialer::default(),
        }
        .with_host_nqn(this_host_nqn())
    }

    /// For another host than this one's usual name, with the identifier that belongs to it.
    #[must_use]
    pub fn with_host_nqn(self, host_nqn: impl Into<String>) -> ControllerOptions {
        let host_nqn = host_nqn.into();
        // A host has one identifier, for the kernel's initiator and for this one.
        let kernel_id = (kernel_host_nqn().as_deref() == Some(&host_nqn)).then(kernel_host_id).flatten();
        let host_id = kernel_id.unwrap_or_else(|| uuid_of(&host_nqn));
        ControllerOptions { host_nqn, host_id, ..self }
    }

    pub(super) fn check(&self) -> Result<(), InitiatorError> {
        let refused = |problem: String| Err(InitiatorError::Options(problem));
        if let Err(problem) = nqn::check_host(&self.host_nqn) {
            return refused(format!(
                "'{}' is not a valid NQN of a host: {problem}",
                self.host_nqn.escape_debug()
            ));
        }
        if !self.subsystem_nqn.starts_with("nqn.") || !nqn::is_usable(&self.subsystem_nqn) {
            return refused(format!(
                "'{}' is not a valid NQN of a subsystem: it must start with 'nqn.' and have at most {NQN_BYTES} bytes, none of them a blank",
                self.subsystem_nqn.escape_debug()
            ));
        }
        if self.host_id == [0; 16] {
            return refused("a host identifier of zeros: no target may take it".into());
        }
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return refused(format!("{} I/O queues: expected 1 to {MAX_QUEUES}", self.queues));
        }
        if !(1..=MAX_QUEUE_DEPTH).contains(&self.queue_depth) {
            return refused(format!(
                "a queue depth of {}: expected 1 to {MAX_QUEUE_DEPTH}",
                self.queue_depth
            ));
        }
        if self.connect_timeout.is_zero() {
            return refused("a connect timeout of zero: nothing would ever connect".into());
        }
        Ok(())
    }
}

/// The name of this host: the one that the kernel's initiator uses here, or one that stays the same on this machine.
pub fn this_host_nqn() -> String {
    if let Some(nqn) = kernel_host_nqn() {
        return nqn;
    }
    let machine = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", nqn::uuid_text(&uuid_of(machine.trim())))
}

fn kernel_host_nqn() -> Option<String> {
    let text = std::fs::read_to_string(KERNEL_HOST_NQN).ok()?;
    let nqn = text.trim();
    nqn::check_host(nqn).is_ok().then(|| nqn.to_owned())
}

fn kernel_host_id() -> Option<[u8; 16]> {
    parse_uuid(std::fs::read_to_string(KERNEL_HOST_ID).ok()?.trim()).filter(|id| *id != [0; 16])
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    base16ct::mixed::decode(&digits, &mut uuid).ok()?;
    Some(uuid)
}

/// A UUID that a text stands for, of the version for such (RFC 9562, section 5.8).
fn uuid_of(text: &str) -> [u8; 16] {
    let digest = Sha256::new().chain_update(b"underlay host ").chain_update(text).finalize();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_one_name_and_identifier() {
        let (one, other) =
            (ControllerOptions::new("a:1", "nqn.x:y"), ControllerOptions::new("b:2", "nqn.x:z"));
        assert_eq!((&one.host_nqn, one.host_id), (&other.host_nqn, other.host_id));
        assert_ne!(one.clone().with_host_nqn("nqn.2014-08.org.example:another").host_id, one.host_id);
        assert!(one.host_nqn.starts_with("nqn.") && one.host_nqn.len() <= NQN_BYTES, "{}", one.host_nqn);
        one.check().unwrap();
    }

    #[test]
    fn identifiers_are_read_as_they_are_written() {
        let id = parse_uuid("6f1c5c1e-0203-4000-8000-0123456789ab").unwrap();
        assert_eq!((id[0], id[4], id[5], id[15]), (0x6f, 2, 3, 0xab));
        for wrong in [
            "",
            "6f1c5c1e",
            "+f1c5c1e-0203-4000-8000-0123456789ab",
            "6f1c5c1e-0203-4000-8000-0123456789a",
            "xf1c5c1e-0203-4000-8000-0123456789ab",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused_by_name() {
        let good = ControllerOptions::new("a:1", "nqn.x:y");
        let refused = |options: ControllerOptions| options.check().unwrap_err().to_string();
        assert!(
            refused(ControllerOptions { subsystem_nqn: "data".into(), ..good.clone() }).contains("'data'")
        );
        assert!(refused(good.clone().with_host_nqn("nqn.".to_owned() + &"x".repeat(300))).contains("host"));
        assert!(refused(good.clone().with_host_nqn("iqn.1994-05.com.example:abc")).contains("of a host"));
        assert!(
            refused(ControllerOptions { host_id: [0; 16], ..good.clone() }).contains("identifier of zeros")
        );
        assert!(
            refused(ControllerOptions { subsystem_nqn: "nqn.x:\u{1b}[2J".into(), ..good.clone() })
                .contains("of a subsystem")
        );
        assert!(refused(ControllerOptions { queues: 0, ..good.clone() }).contains("0 I/O queues"));
        assert!(refused(ControllerOptions { queue_depth: 5000, ..good }).contains("5000"));
    }
}
