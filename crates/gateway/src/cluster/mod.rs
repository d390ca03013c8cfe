//! Several gateways over one store: who is there and who has which keys, kept in etcd. `docs/gateway.md` says what that
//! guarantees.
//!
//! A slot's record stays when its owner goes; the owner's own key goes with its lease. Every change of a slot is a
//! transaction that compares the record, our lease, and that the former owner is gone or the next one there.

mod control;
mod etcd;
mod operate;
mod peers;
mod records;
mod standstill;
mod tasks;
#[cfg(test)]
mod tests;
mod witness;

pub use etcd::{EtcdError, EtcdKv, EtcdPut, EtcdResult, EtcdRow, TransactionGuard};
pub(crate) use operate::{abandon, alone, members};
pub use peers::{ConnectPeer, PeerStream};
pub(crate) use peers::{PeerClients, PeerRequest};

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base16ct::lower::encode_string as hex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use underlay_sync::Mutex;

use crate::config::{self, ConfigSecrets, GatewayConfig};
use crate::engine::{GatewayEngine, HeldSlot, KeySharing, PeerQueries};
use crate::ownership::{SlotOwnership, boot_ms};
use crate::placement::SLOTS;
use crate::s3::AddressingStyle;
use etcd::EtcdClient;
use records::{ClusterRecord, ClusterView, EtcdKeys, HomeRecord, MemberRecord, SlotRecord, put};
use witness::{EtcdContradiction, EtcdRollbackGuard};

/// The lease is looked at, and renewed, so often while it lasts.
const LOOKS_A_LEASE: u32 = 5;
/// Slots that it took would be served by nobody.
const BROKEN: &str = "the metadata can't be written any more, so this gateway has left the cluster\n  what to do: see why in its log, and start it anew";
const LEAVE_PAUSE: Duration = Duration::from_millis(100);
const REGISTER_PAUSE: Duration = Duration::from_millis(500);

/// State that a member's tasks share.
struct MemberShared {
    engine: Arc<GatewayEngine>,
    ownership: Arc<SlotOwnership>,
    etcd: Box<dyn EtcdKv>,
    keys: EtcdKeys,
    name: String,
    member: MemberRecord,
    segments: usize,
    ttl: Duration,
    /// How often etcd is looked at.
    tick: Duration,
    /// Of this start: etcd has it, and an older copy of the local directory does not.
    token: u64,
    /// The highest revision of etcd that we have seen.
    seen: AtomicU64,
    /// Held while etcd is looked at or changed: what is found is held against what was there just before.
    witness: tokio::sync::Mutex<EtcdRollbackGuard>,
    /// Whether the stores say by now that they belong to the cluster.
    is_marked: AtomicBool,
    lease: Mutex<Option<i64>>,
    poked: Notify,
    leaving: Notify,
    has_left: AtomicBool,
    /// Whether only unfinished uploads keep us from leaving.
    has_only_uploads: AtomicBool,
    /// When `control` last came round.
    came_round: Mutex<Instant>,
}

/// Unfinished uploads that the log names.
const MAX_LOGGED: usize = 5;

/// This gateway as a member.
pub(crate) struct ClusterMember {
    shared: Arc<MemberShared>,
    tasks: [JoinHandle<()>; 2],
}

/// Why a gateway is not there yet.
enum MemberRefusal {
    /// It would be wrong to go on.
    Wrong(String),
    NotYet(String),
}

fn wrong(error: crate::errors::GatewayError) -> MemberRefusal {
    MemberRefusal::Wrong(error.to_string())
}

fn not_yet(error: etcd::EtcdError) -> MemberRefusal {
    MemberRefusal::NotYet(error.to_string())
}

/// Never 0.
fn random() -> Result<u64, String> {
    let number = getrandom::u64().map_err(|error| format!("no random numbers: {error}"))?;
    Ok(number.max(1))
}

fn lost_cluster() -> String {
    "etcd no longer has the cluster of this gateway's local directory, or has another cluster\n  what to do: bring etcd's data back; if they are lost, see \"When etcd has lost something\" in docs/gateway-cluster.md".to_owned()
}

fn went_back(problem: &str) -> String {
    format!(
        "etcd is older than it was: {problem}; somebody has brought back older data, which may give one slot to two gateways, so no gateway serves anything\n  what to do: see \"When etcd has lost something\" in docs/gateway-cluster.md"
    )
}

fn halted(reason: &str) -> String {
    format!(
        "a gateway has stopped the cluster: {}\n  what to do: see \"When etcd has lost something\" in docs/gateway-cluster.md",
        reason.escape_debug()
    )
}

fn older_copy() -> String {
    "the local directory is an older copy of one that a gateway has used since\n  what to do: use the newest one, or begin with an empty one".to_owned()
}

fn unkeepable(count: usize) -> String {
    format!(
        "{count} objects have tags, an `Expires` header, or user metadata over a directory, which several gateways can't keep\n  what to do: take those off while this gateway is alone, or, if they are not needed, begin with an empty local directory"
    )
}

fn other_segments(of_cluster: usize, configured: usize) -> String {
    format!(
        "the cluster was made with segments = {of_cluster}, and [cluster] says {configured}: it can't be changed"
    )
}

fn other_cluster(bucket: &str) -> String {
    format!(
        "the store of bucket {bucket} belongs to a cluster of gateways that this etcd does not have\n  what to do: bring that etcd's data back; if they are lost, see \"When etcd has lost something\" in docs/gateway-cluster.md; another cluster needs other stores (`{}` in the store says whose it is)",
        crate::store::OWNERS
    )
}

/// Etcd says that the stores have everything in these slots, and they don't.
fn clean_and_unsettled(slots: usize) -> String {
    format!(
        "the local directory has data that the store lacks, in {slots} slots that are clean in etcd (the store should have everything): the gateway neither serves nor stores these slots\n  what to do: etcd has lost something, or there is a bug; see \"When etcd has lost something\" in docs/gateway-cluster.md"
    )
}

/// Whether the local directory is the one that etcd's record of a slot speaks of.
fn is_known(held_slot: Option<&HeldSlot>, record: &SlotRecord) -> bool {
    held_slot.is_some_and(|held_slot| held_slot.is(record.epoch, record.mark))
}

fn given_up(slots: usize) -> String {
    format!(
        "keys of {slots} slots were given up by `underlay-gateway abandon`, and this local directory has writes to them that the store does not have: the gateway neither serves nor stores those\n  what to do: if they are not needed, move the local directory away and begin with an empty one"
    )
}

/// For the fuzzer: any bytes as an answer of etcd, as a value there, and as the path of a request.
pub(crate) fn read_any(data: &[u8]) {
    let keys = EtcdKeys::new("/t");
    if let Ok(answer) = serde_json::from_slice(data)
        && let Ok(rows) = etcd::rows_of(&answer)
    {
        let _ = ClusterView::read(&keys, &rows, 1);
    }
    for key in [keys.cluster(), keys.halted(), keys.member("a"), keys.home("a"), keys.slot(7)] {
        let row = etcd::EtcdRow { key, value: data.to_vec(), mod_revision: 1, lease: 1 };
        let _ = ClusterView::read(&keys, &[row], 1);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = peers::name_of(&AddressingStyle::Path, text);
    }
}

/// For the fuzzer: any headers as those of a request to the gateways' own port.
pub(crate) fn read_any_head(headers: &hyper::HeaderMap) {
    let _ = peers::proof_in(headers);
}

/// A fingerprint of the buckets, so that members can tell whether theirs are the same.
fn buckets_of(config: &GatewayConfig) -> String {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    let mut buckets: Vec<_> = config.buckets.iter().collect();
    buckets.sort_by(|a, b| a.name.cmp(&b.name));
    for bucket in buckets {
        hash.update(format!("{:?} {:?}\n", bucket.name, bucket.store.to_string()));
        for rule in &bucket.rules {
            hash.update(format!("{:?} {:?}\n", rule.prefix, rule.consistency));
        }
    }
    hash.update(format!("{:?}", config.s3.url));
    hex(&hash.finalize()[..16])
}

fn etcd_of(config: &config::ClusterConfig, secrets: &ConfigSecrets) -> Result<EtcdClient, String> {
    let authority = match &config.authority {
        Some(path) => Some(
            underlay_files::read(path, 1 << 20)
                .map_err(|error| format!("[cluster]: {}: {error}", path.display()))?,
        ),
        None => None,
    };
    let user = config.etcd_user.as_ref().map(|(name, _)| name.clone()).zip(secrets.of_etcd.clone());
    // Two tries have to fit what is left of a lease after a look.
    let patience = (config.ttl / LOOKS_A_LEASE).max(Duration::from_millis(500));
    EtcdClient::new(config.etcd.clone(), user, authority.as_deref(), patience)
}

/// The member that a slot is to be with, by id and name.
fn chosen_for(view: &ClusterView, slot: u16) -> Option<(String, String)> {
    let name = crate::placement::chosen(view.staying().map(|(_, member)| member.name.as_str()), slot)?;
    let (id, member) = view.staying().find(|(_, member)| member.name == name)?;
    Some((id.clone(), member.name.clone()))
}

/// How a simulation reaches etcd and the other gateways.
pub struct SimulatedCluster {
    pub etcd: Box<dyn EtcdKv>,
    pub connect: Box<ConnectPeer>,
}

/// The cluster's view for the engine before it is opened.
///
/// # Errors
/// When a certificate or a secret can't be used.
pub(crate) fn sharing_of(
    config: &GatewayConfig,
    secrets: &ConfigSecrets,
    connect: Option<Box<ConnectPeer>>,
) -> Result<Option<(KeySharing, Arc<PeerClients>)>, String> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    let ownership = Arc::new(SlotOwnership::new(cluster.segments));
    let secret = secrets.of_cluster.clone().unwrap_or_default();
    let peers = PeerClients::new(cluster, config.tls.is_some(), secret, Arc::clone(&ownership))?;
    let peers = Arc::new(match connect {
        Some(connect) => peers.connected_by(connect),
        None => peers,
    });
    Ok(Some((KeySharing { ownership, others: Arc::clone(&peers) as Arc<dyn PeerQueries> }, peers)))
}

impl ClusterMember {
    /// Whether a task of it is gone before its time, which only a bug does.
    pub(crate) fn has_broken_down(&self) -> bool {
        !self.shared.has_left.load(Ordering::Acquire) && self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// Joins the cluster, and goes on in tasks of its own. One that is `only_leaving` gives away what it has, and is
    /// given nothing.
    ///
    /// # Errors
    /// When it would be wrong to: the cluster is another one, or this gateway has what was given up. While etcd does
    /// not answer, it is waited for. `etcd` is another one than the configuration names.
    pub(crate) async fn join(
        (config, secrets): (&GatewayConfig, &ConfigSecrets),
        etcd: Option<Box<dyn EtcdKv>>,
        engine: Arc<GatewayEngine>,
        ownership: Arc<SlotOwnership>,
        only_leaving: bool,
    ) -> Result<Option<ClusterMember>, String> {
        let Some(cluster) = &config.cluster else { return Ok(None) };
        let address = cluster.address.clone().unwrap_or_else(|| cluster.listen.to_string());
        let shared = Arc::new(MemberShared {
            etcd: match etcd {
                Some(etcd) => etcd,
                None => Box::new(etcd_of(cluster, secrets)?),
            },
            keys: EtcdKeys::new(&cluster.prefix),
            name: cluster.name.clone(),
            member: MemberRecord {
                name: cluster.name.clone(),
                address,
                buckets: buckets_of(config),
                is_leaving: only_leaving,
            },
            segments: cluster.segments,
            ttl: cluster.ttl,
            tick: cluster.ttl / LOOKS_A_LEASE,
            token: random()?,
            seen: AtomicU64::new(0),
            witness: tokio::sync::Mutex::default(),
            is_marked: AtomicBool::new(false),
            lease: Mutex::new(None),
            poked: Notify::new(),
            leaving: Notify::new(),
            has_left: AtomicBool::new(false),
            has_only_uploads: AtomicBool::new(false),
            came_round: Mutex::new(Instant::now()),
            engine,
            ownership,
        });
        let mut last_logged = String::new();
        loop {
            match shared.register().await {
                Ok(()) => break,
                Err(MemberRefusal::Wrong(reason)) => return Err(reason),
                Err(MemberRefusal::NotYet(reason)) => {
                    if last_logged != reason {
                        tracing::warn!("not in the cluster yet: {reason}");
                        last_logged = reason;
                    }
                    tokio::time::sleep(REGISTER_PAUSE).await;
                }
            }
        }
        *shared.came_round.lock() = Instant::now();
        // After a restart these tasks would not know what is still on its way to etcd, so a panic of either ends the
        // gateway.
        let supervisor = &shared.engine.supervisor;
        let tasks = [
            supervisor.run_vital("holder of the cluster's lease", Arc::clone(&shared).hold()),
            supervisor.run_vital("control of the cluster's slots", Arc::clone(&shared).control()),
        ];
        Ok(Some(ClusterMember { shared, tasks }))
    }

    /// Hands everything to the other members, as far as the stores have it, and takes its leave. Returns whether they
    /// have all.
    pub(crate) async fn leave(&self, deadline: Instant) -> bool {
        self.shared.leaving.notify_one();
        while !self.shared.has_left.load(Ordering::Acquire) {
            if self.shared.has_only_uploads.load(Ordering::Acquire) {
                self.say_uploads_stay();
                break;
            }
            if Instant::now() >= deadline {
                match (self.shared.lease.lock().is_some(), self.shared.ownership.counts()) {
                    (true, (_, dirty, _)) => tracing::warn!(
                        "{dirty} slots have data that the store lacks: their keys answer SlowDown until this gateway is back"
                    ),
                    (false, _) => tracing::warn!(
                        "etcd has not confirmed that everything is handed over: keys that it assigns to this gateway answer SlowDown until this is back"
                    ),
                }
                break;
            }
            tokio::time::sleep(LEAVE_PAUSE).await;
        }
        let has_left = self.shared.has_left.swap(true, Ordering::AcqRel);
        // In this order: nobody makes anything ours again by a lease that is not there.
        let lease = self.shared.lease.lock().take();
        self.shared.ownership.let_go();
        if let Some(lease) = lease {
            // Without that it ends by itself.
            let _ = self.shared.etcd.revoke(lease).await;
        }
        has_left
    }

    fn say_uploads_stay(&self) {
        let (some, count) = self.shared.engine.some_uploads(MAX_LOGGED).unwrap_or_default();
        let more = if count > some.len() { ", ..." } else { "" };
        let (_, dirty, _) = self.shared.ownership.counts();
        tracing::warn!(
            "{count} uploads are unfinished, and their parts are here: {}{more}\n  what follows: the keys of {dirty} slots answer SlowDown until this gateway is back\n  what to do: complete or abort these uploads before you take this machine away for good",
            some.join(", ")
        );
    }
}

impl MemberShared {
    /// The contents of etcd. Data that are older than what was seen before stop us, and everybody else.
    async fn look(&self) -> Result<ClusterView, MemberRefusal> {
        let membership = self.engine.membership().map_err(wrong)?;
        let noted = membership.as_ref().map_or(0, |membership| membership.revision);
        // Before it is asked: answers may overtake each other.
        let least = self.seen.load(Ordering::Acquire).max(noted);
        let mut witness = self.witness.lock().await;
        let (rows, revision) = self.etcd.range(&self.keys.all()).await.map_err(not_yet)?;
        let view = ClusterView::read(&self.keys, &rows, revision).map_err(MemberRefusal::NotYet)?;
        if let Some(reason) = &view.halted {
            return Err(MemberRefusal::Wrong(halted(reason)));
        }
        let is_ours = membership.is_none_or(|membership| {
            view.cluster.as_ref().is_some_and(|cluster| cluster.id == membership.cluster)
        });
        let contradiction = match (is_ours, view.revision < least) {
            (false, _) => None,
            (true, true) => Some(EtcdContradiction::WentBack(format!(
                "it had got to revision {least}, and is at {revision}"
            ))),
            (true, false) => {
                let home = view.homes.get(self.ownership.id());
                witness.look(&self.keys, home, self.token, (&rows, revision)).err()
            }
        };
        match contradiction {
            None => {}
            Some(EtcdContradiction::Copied) => return Err(MemberRefusal::Wrong(older_copy())),
            Some(EtcdContradiction::WentBack(problem)) => {
                let reason = format!("gateway {} saw etcd go back: {problem}", self.name);
                let key = self.keys.halted();
                // Others may not have seen as much as we have. If this fails, the next look tries again.
                let _ = self
                    .etcd
                    .transact(&[TransactionGuard::Absent(key.clone())], &[put(key, &reason, 0)])
                    .await;
                return Err(MemberRefusal::Wrong(went_back(&problem)));
            }
        }
        self.seen.fetch_max(revision, Ordering::AcqRel);
        Ok(view)
    }

    /// As [`EtcdKv::transact`], with a witness of it: should etcd lose it, the next look finds out.
    async fn transact(
        &self,
        mut compares: Vec<TransactionGuard>,
        mut puts: Vec<EtcdPut>,
    ) -> etcd::EtcdResult<Option<u64>> {
        let mut witness = self.witness.lock().await;
        let serial = random().map_err(EtcdError::not_done)?;
        let home = self.keys.home(self.ownership.id());
        compares.extend(witness.begin(home.clone(), serial));
        puts.push(put(home, &HomeRecord { token: self.token, serial }, 0));
        let outcome = self.etcd.transact(&compares, &puts).await;
        witness.end(serial, &outcome);
        outcome
    }

    /// Has the stores say whose they are: an etcd that has lost everything must not begin a second cluster over them.
    async fn mark_stores(&self, cluster: Option<u64>) -> Result<(), MemberRefusal> {
        let text = cluster.map(|cluster| format!("cluster {cluster:016x}\n"));
        let other = |markers: Vec<(String, Option<String>)>| {
            markers.into_iter().find(|(_, marker)| marker.is_some() && *marker != text)
        };
        let refused =
            |error: crate::errors::GatewayError| MemberRefusal::NotYet(format!("the store: {error}"));
        let found = self.engine.store_markers().await.map_err(refused)?;
        if let Some((bucket, _)) = other(found) {
            return Err(MemberRefusal::Wrong(other_cluster(&bucket)));
        }
        let Some(text) = &text else { return Ok(()) };
        self.engine.mark_stores(text).await.map_err(refused)?;
        // Somebody else may have been first.
        match other(self.engine.store_markers().await.map_err(refused)?) {
            Some((bucket, _)) => Err(MemberRefusal::Wrong(other_cluster(&bucket))),
            None => Ok(()),
        }
    }

    /// Whether the cluster in etcd is that of the local directory and of the stores. It is made if there is none and
    /// never was.
    async fn check_cluster(&self, view: &ClusterView, unsettled: usize) -> Result<(), MemberRefusal> {
        let joined = self.engine.membership().map_err(wrong)?.map(|membership| membership.cluster);
        // Asked only before it joins: a member refuses such objects as they come.
        if joined.is_none() {
            let count = self.engine.count_unkeepable().map_err(wrong)?;
            if count > 0 {
                return Err(MemberRefusal::Wrong(unkeepable(count)));
            }
        }
        let cluster = match (&view.cluster, joined) {
            (None, Some(_)) => return Err(MemberRefusal::Wrong(lost_cluster())),
            (Some(cluster), Some(joined)) if cluster.id != joined => {
                return Err(MemberRefusal::Wrong(lost_cluster()));
            }
            (_, None) if unsettled > 0 => {
                return Err(MemberRefusal::Wrong(
                    "the local directory has what its store does not have, of a time without [cluster]\n  what to do: take [cluster] out, run `underlay-gateway drain`, and put it back".to_owned(),
                ));
            }
            (None, None) => {
                // A store that is marked shows that this etcd has lost its cluster: a second one must not begin.
                self.mark_stores(None).await?;
                let id = random().map_err(MemberRefusal::Wrong)?;
                let record = ClusterRecord { id, segments: self.segments };
                let key = self.keys.cluster();
                let made = self
                    .etcd
                    .transact(&[TransactionGuard::Absent(key.clone())], &[put(key, &record, 0)])
                    .await;
                made.map_err(not_yet)?;
                // Another gateway may have been first. The next look finds the one record that counts.
                return Err(MemberRefusal::NotYet("the cluster is new".to_owned()));
            }
            (Some(cluster), _) => cluster.clone(),
        };
        if cluster.segments != self.segments {
            return Err(MemberRefusal::Wrong(other_segments(cluster.segments, self.segments)));
        }
        // Once in a process: else every store would be asked each time that it registers.
        if !self.is_marked.load(Ordering::Acquire) {
            self.mark_stores(Some(cluster.id)).await?;
            self.is_marked.store(true, Ordering::Release);
        }
        if joined.is_none() {
            // Last: from here on an etcd without this cluster is refused.
            let id = cluster.id;
            self.engine.note_membership(move |membership| membership.cluster = id).await.map_err(wrong)?;
        }
        Ok(())
    }

    /// Whether etcd and the local directory tell the same of every slot that either says is ours.
    fn check_slots(&self, view: &ClusterView, unsettled: &HashSet<u16>) -> Result<(), MemberRefusal> {
        let (known_slots, id) = (self.engine.known_slots().map_err(wrong)?, self.ownership.id());
        let (mut lost, mut clean) = (0, 0);
        for slot in 0..SLOTS {
            let record = view.slot(slot).map(|(record, _)| record).filter(|record| record.owner == id);
            let is_known = record.is_some_and(|record| is_known(known_slots.get(&slot), record));
            match record {
                Some(record) if record.is_dirty && !is_known => {
                    return Err(MemberRefusal::Wrong(older_copy()));
                }
                Some(record) if !record.is_dirty && unsettled.contains(&slot) => clean += 1,
                None if unsettled.contains(&slot) => lost += 1,
                _ => {}
            }
        }
        match (lost, clean) {
            (0, 0) => Ok(()),
            (0, clean) => Err(MemberRefusal::Wrong(clean_and_unsettled(clean))),
            (lost, _) => Err(MemberRefusal::Wrong(given_up(lost))),
        }
    }

    /// Gets a lease and is there from now on, with nothing of its own before etcd has been looked at.
    async fn register(&self) -> Result<(), MemberRefusal> {
        let (view, id) = (self.look().await?, self.ownership.id().to_owned());
        let unsettled = self.engine.unsettled_slots().await.map_err(wrong)?;
        self.check_cluster(&view, unsettled.len()).await?;
        for (other, member) in &view.members {
            if *other == id {
                return Err(MemberRefusal::NotYet(
                    "the lease that this gateway had before has not ended".to_owned(),
                ));
            }
            if member.name == self.name {
                return Err(MemberRefusal::NotYet(format!(
                    "another gateway is there by the name {}: a name is for one of them",
                    self.name
                )));
            }
            if member.buckets != self.member.buckets {
                return Err(MemberRefusal::Wrong(format!(
                    "gateway {} has other buckets, prefixes or stores in its configuration than this one: all of a cluster have to have the same",
                    member.name
                )));
            }
        }
        let membership = self.engine.membership().map_err(wrong)?.unwrap_or_default();
        let home_is = match view.homes.get(&id) {
            None if membership.is_registered => return Err(MemberRefusal::Wrong(lost_cluster())),
            None => TransactionGuard::Absent(self.keys.home(&id)),
            Some((former, revision)) if membership.tokens.contains(&former.token) => {
                TransactionGuard::Unchanged(self.keys.home(&id), *revision)
            }
            Some(_) => return Err(MemberRefusal::Wrong(older_copy())),
        };
        self.check_slots(&view, &unsettled)?;
        let (token, seen) = (self.token, view.revision);
        // Durable before etcd has it. Former ones stay until it is known which of them etcd has.
        let noted = self.engine.note_membership(move |membership| {
            if !membership.tokens.contains(&token) {
                membership.tokens.push(token);
            }
            membership.revision = membership.revision.max(seen);
        });
        noted.await.map_err(wrong)?;
        let asked_ms = boot_ms();
        let (lease, ttl) = self.etcd.grant(self.ttl).await.map_err(not_yet)?;
        let member_key = self.keys.member(&id);
        let puts = vec![put(member_key.clone(), &self.member, lease)];
        let outcome = self
            .transact(vec![TransactionGuard::Absent(member_key), home_is], puts)
            .await
            .map_err(not_yet)?;
        let Some(revision) = outcome else {
            return Err(MemberRefusal::NotYet("something has changed in etcd at the same time".to_owned()));
        };
        self.seen.fetch_max(revision, Ordering::AcqRel);
        let noted = self.engine.note_membership(move |membership| {
            (membership.tokens, membership.is_registered) = (vec![token], true);
            membership.revision = membership.revision.max(revision);
        });
        noted.await.map_err(wrong)?;
        self.ownership.let_go();
        *self.lease.lock() = Some(lease);
        self.hold_from(asked_ms, ttl);
        self.poked.notify_one();
        Ok(())
    }
}
