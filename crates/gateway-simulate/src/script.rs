//! A simulation's events, as a text that can be shortened and kept.

mod chances;
mod draw;
mod limits;
mod scenes;

use serde::{Deserialize, Serialize};

pub use draw::generate;
pub use scenes::scene_names;

/// A run, to the last detail: the same script does the same each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationScript {
    /// Decides every latency and the order of what happens at once.
    pub seed: u64,
    pub setup: ScriptSetup,
    pub steps: Vec<ScriptStep>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptSetup {
    pub gateways: usize,
    pub settings: GatewaySettings,
    pub store: StoreSetup,
    /// Clients that do what [`ScriptStep::Do`] says, each one operation after another.
    pub clients: usize,
}

/// A gateway's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySettings {
    pub journal_bytes: u64,
    pub memory_bytes: u64,
    pub block_bytes: u64,
    pub flushes: usize,
    pub requests: usize,
    /// `None` is write-through.
    pub write_back_ms: Option<u64>,
    /// Of the prefix "".
    pub consistency: RuleConsistency,
    /// Of longer prefixes.
    pub rules: Vec<(String, RuleConsistency)>,
    pub patience_ms: u64,
    pub drain_ms: u64,
    pub uploads_expire_s: u64,
    /// Of the simulated local disk.
    pub disk_bytes: u64,
    pub is_encrypted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RuleConsistency {
    Exclusive,
    Ttl { ms: u64 },
    Revalidate,
}

/// The kind of store, faults apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSetup {
    pub kind: StoreKind,
    /// Longer objects can't be copied, as in S3 above 5 GiB.
    pub most_copy_bytes: Option<u64>,
    /// ETags that look like MD5s and are none, as where the store encrypts.
    pub has_etags_of_its_own: bool,
    /// Entries of a page of a listing.
    pub page: usize,
    /// Objects that others had put there before the first start: keys by number, and sizes.
    pub before: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum StoreKind {
    S3,
    /// Takes small letters and capitals for the same.
    Folding,
    /// Gives files second names in place of copies.
    Directory,
}

/// How the store behaves until a later step changes that. Shares are of a thousand requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreFaults {
    /// It answers nothing that succeeds.
    pub is_down: bool,
    /// Requests that fail before anything is done.
    pub failing_before: u64,
    /// Requests that are carried out, and answered by a failure.
    pub failing_after: u64,
    /// Changes that are answered by a failure, and carried out up to `late_ms` later.
    pub landing_late: u64,
    pub late_ms: u64,
    /// Requests that are never answered; changes among them may be carried out.
    pub hanging: u64,
    /// Requests that take up to `stall_ms`.
    pub stalling: u64,
    pub stall_ms: u64,
    /// Bodies that break off.
    pub breaking: u64,
}

/// How a client sends a body, or takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum BodyPace {
    #[default]
    Full,
    /// So many bytes a second.
    Slow { bytes_per_s: u32 },
    /// It stops after the first bytes, and stays for so long.
    Stalled { ms: u64 },
}

/// How a body is framed and signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum BodyFraming {
    #[default]
    Whole,
    /// `aws-chunked`, each chunk signed.
    Signed { chunk_bytes: u32 },
    /// `aws-chunked` with a checksum behind it.
    Trailer { chunk_bytes: u32 },
}

/// Headers that a client may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientHeaders {
    /// One of user metadata, by which a version is known.
    #[default]
    Plain,
    /// An encoded word with a line feed in it: no request can carry what it says.
    EncodedLineFeed,
    /// Encoded words of letters.
    EncodedWord,
    /// So long that no store takes them.
    Long { bytes: u32 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientCondition {
    #[default]
    None,
    IfAbsent,
    /// The version that the client has seen last.
    IfSame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScriptPart {
    Bytes {
        size: u32,
    },
    /// A range of an object, cut to what the object has.
    Copied {
        from: u32,
        at: u32,
        size: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum UploadEnd {
    Complete,
    Abort,
    /// The client goes away.
    Leave,
}

/// A client's operation. Keys are numbers, taken modulo what there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientOperation {
    Put {
        key: u32,
        size: u32,
        #[serde(default)]
        condition: ClientCondition,
        #[serde(default)]
        headers: ClientHeaders,
        #[serde(default)]
        framing: BodyFraming,
        #[serde(default)]
        pace: BodyPace,
    },
    Get {
        key: u32,
        #[serde(default)]
        range: Option<(u32, u32)>,
        #[serde(default)]
        pace: BodyPace,
    },
    Head {
        key: u32,
    },
    Delete {
        key: u32,
    },
    DeleteMany {
        keys: Vec<u32>,
    },
    Copy {
        from: u32,
        to: u32,
        #[serde(default)]
        replaces_headers: bool,
        #[serde(default)]
        condition: ClientCondition,
    },
    Upload {
        key: u32,
        parts: Vec<ScriptPart>,
        end: UploadEnd,
    },
    List {
        prefix: u32,
        has_delimiter: bool,
        page: u32,
    },
    /// A client that has to be served within this time, in spite of all others. The time begins anew when a fault
    /// has ended.
    Probe {
        key: u32,
        within_ms: u64,
    },
    /// Keys to delete, sent as one chunk of this length that is none of a document.
    Document {
        bytes: u32,
        #[serde(default)]
        pace: BodyPace,
    },
    /// Requests with a signature that is none.
    Forged {
        key: u32,
        count: u32,
    },
    /// Connections that send nothing.
    Idle {
        connections: u32,
        ms: u64,
    },
    /// Uploads that nobody goes on with, each with so many bytes of headers.
    Begin {
        key: u32,
        count: u32,
        header_bytes: u32,
    },
    /// So many small objects, which may reach the store later.
    Many {
        count: u32,
    },
    /// Somebody else puts an object into the store, or deletes one.
    Others {
        key: u32,
        size: Option<u32>,
    },
}

/// Times are virtual. Numbers are taken modulo what there is, so that a script stays one when steps are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScriptStep {
    Do {
        client: usize,
        operation: ClientOperation,
    },
    Wait {
        ms: u64,
    },
    /// Until all clients are done.
    Barrier,
    Kill {
        gateway: usize,
    },
    CutPower {
        gateway: usize,
    },
    Start {
        gateway: usize,
    },
    /// SIGSTOP.
    Stop {
        gateway: usize,
    },
    Continue {
        gateway: usize,
    },
    /// SIGTERM: it stores what is left.
    Terminate {
        gateway: usize,
    },
    FailSyncs {
        gateway: usize,
        count: u32,
    },
    FillDisk {
        gateway: usize,
        left_bytes: u64,
    },
    FreeDisk {
        gateway: usize,
    },
    /// The kernel forgets clean pages.
    DropPages {
        gateway: usize,
    },
    JumpClock {
        gateway: usize,
        ms: i64,
    },
    Store(StoreFaults),
    /// The store and the disks are sound from now on. Clocks stay as they are.
    Heal,
    /// For the next start.
    Configure(GatewaySettings),
    StopEtcd,
    StartEtcd,
}

impl SimulationScript {
    /// Requests to crash something.
    pub fn crashes(&self) -> u64 {
        let is_crash =
            |step: &&ScriptStep| matches!(step, ScriptStep::Kill { .. } | ScriptStep::CutPower { .. });
        self.steps.iter().filter(is_crash).count() as u64
    }
}

impl ScriptStep {
    /// Whether a client may wait for as long as this lasts. Only `Heal` ends all of it.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            ScriptStep::Kill { .. }
            | ScriptStep::CutPower { .. }
            | ScriptStep::Stop { .. }
            | ScriptStep::Terminate { .. }
            | ScriptStep::FailSyncs { .. }
            | ScriptStep::FillDisk { .. }
            | ScriptStep::JumpClock { .. }
            | ScriptStep::StopEtcd => true,
            ScriptStep::Store(faults) => *faults != StoreFaults::default(),
            ScriptStep::Do { .. }
            | ScriptStep::Wait { .. }
            | ScriptStep::Barrier
            | ScriptStep::Start { .. }
            | ScriptStep::Continue { .. }
            | ScriptStep::FreeDisk { .. }
            | ScriptStep::DropPages { .. }
            | ScriptStep::Heal
            | ScriptStep::Configure(_)
            | ScriptStep::StartEtcd => false,
        }
    }
}
