//! A user's commands to a run from another process, such as the console: skip a cell, or stop.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_attach::registry::{OwnedResource, RegistryOwner};
use underlay_attach::{AttachError, OwnFolder, RegistryNote, ResourceRegistry};
use underlay_files::control_socket::{Answer, ControlSocket};
use underlay_sync::Mutex;

/// The longest command, in bytes with its newline.
const MAX_LINE_BYTES: u64 = 4096;
const PURPOSE: &str = "run";
const SOCKET: &str = "control";
const POLL: Duration = Duration::from_millis(50);

/// A command: `{"command":"skip","position":3}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RunCommand {
    /// Skips the cell at this position of the plan, counted from 0, or ends it early.
    Skip { position: u32 },
    /// Like Ctrl-C.
    Stop,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum RunReply {
    Done,
    Failed { problem: String },
}

/// The requests so far.
#[derive(Default)]
pub(super) struct ControlRequests {
    inner: Mutex<ControlState>,
    /// The running cell has to end, because it is skipped or everything is stopped.
    halt: AtomicBool,
}

#[derive(Default)]
struct ControlState {
    stop: bool,
    /// Positions in the plan.
    skips: BTreeSet<u32>,
    running: Vec<u32>,
    ended: BTreeSet<u32>,
    cells: u32,
    /// Not yet reported.
    news: Vec<RunCommand>,
}

impl ControlRequests {
    pub(super) fn for_cells(cells: usize) -> Arc<ControlRequests> {
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        Arc::new(ControlRequests {
            inner: Mutex::new(ControlState { cells, ..ControlState::default() }),
            halt: AtomicBool::new(false),
        })
    }

    fn obey(&self, command: &RunCommand) -> RunReply {
        let mut inner = self.inner.lock();
        match *command {
            RunCommand::Stop => {
                inner.stop = true;
                inner.news.push(command.clone());
            }
            RunCommand::Skip { position } if position >= inner.cells => {
                let problem = format!(
                    "the plan has no cell at position {position}: it has {}, from position 0 on",
                    inner.cells
                );
                return RunReply::Failed { problem };
            }
            RunCommand::Skip { position } if inner.ended.contains(&position) => {
                return RunReply::Failed { problem: "that cell has ended already".to_owned() };
            }
            RunCommand::Skip { position } => {
                if inner.skips.insert(position) {
                    inner.news.push(command.clone());
                }
            }
        }
        RunReply::Done
    }

    /// These cells begin. Returns true if they are to be skipped at once.
    pub(super) fn begin(&self, positions: impl Iterator<Item = u32>) -> bool {
        let mut inner = self.inner.lock();
        inner.running = positions.collect();
        let skipped = inner.is_skipped();
        self.halt.store(inner.stop || skipped, Ordering::Relaxed);
        skipped
    }

    /// Whether one of the running cells is to be skipped; all of them then end.
    pub(super) fn are_skipped(&self) -> bool {
        self.inner.lock().is_skipped()
    }

    /// The running cells have ended.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock();
        let ended = std::mem::take(&mut inner.running);
        inner.ended.extend(ended);
        self.halt.store(inner.stop, Ordering::Relaxed);
    }

    /// The flag that cells watch instead of the one for everything.
    pub(super) fn halt(&self) -> &AtomicBool {
        &self.halt
    }

    /// Everything begins again; no cell has ended.
    pub(super) fn begin_again(&self) {
        self.inner.lock().ended.clear();
    }

    /// Calls a function while commands are carried out. `stop` is the flag that a signal raises, or the command to
    /// stop. `tell` gets each command.
    pub(super) fn fulfilled<T>(
        &self,
        stop: &AtomicBool,
        tell: &(dyn Fn(RunCommand) + Sync),
        act: impl FnOnce() -> T,
    ) -> T {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ends = RaisedOnDrop(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(POLL);
                    let news = {
                        let mut inner = self.inner.lock();
                        if inner.stop {
                            stop.store(true, Ordering::Relaxed);
                        }
                        let halted = stop.load(Ordering::Relaxed) || inner.is_skipped();
                        self.halt.store(halted, Ordering::Relaxed);
                        std::mem::take(&mut inner.news)
                    };
                    news.into_iter().for_each(tell);
                }
            });
            let outcome = act();
            drop(ends);
            outcome
        })
    }
}

impl ControlState {
    fn is_skipped(&self) -> bool {
        self.running.iter().any(|position| self.skips.contains(position))
    }
}

struct RaisedOnDrop<'a>(&'a AtomicBool);

impl Drop for RaisedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts commands until it is dropped.
pub(super) struct RunControl {
    socket: Option<ControlSocket>,
    folder: Option<OwnFolder>,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
}

impl RunControl {
    /// Listens on a socket for this user only, and registers it.
    ///
    /// # Errors
    /// When the socket can't be made.
    pub(super) fn listen(
        wishes: &Arc<ControlRequests>,
        directory: &Path,
        registry: &ResourceRegistry,
    ) -> Result<RunControl, AttachError> {
        let folder = OwnFolder::temporary(PURPOSE, registry)?;
        let path = folder.path().join(SOCKET);
        let note =
            registry.note(OwnedResource::Run { control: path.clone(), directory: directory.to_owned() })?;
        let wishes = Arc::clone(wishes);
        let answer = move |line: &[u8]| {
            Answer::from(match serde_json::from_slice(line) {
                Ok(command) => wishes.obey(&command),
                Err(error) => RunReply::Failed { problem: format!("not a command: {error}") },
            })
        };
        let mut control =
            RunControl { socket: None, folder: Some(folder), registry: registry.clone(), note: Some(note) };
        let listening = ControlSocket::listen(&path, MAX_LINE_BYTES, answer);
        control.socket = Some(listening.map_err(|error| AttachError::io("listen on", &path, error))?);
        Ok(control)
    }
}

impl Drop for RunControl {
    fn drop(&mut self) {
        self.socket.take();
        self.folder.take();
        if let Some(note) = self.note.take() {
            self.registry.forget(note);
        }
    }
}

/// The running runs of this user that accept commands: owner, socket and directory, oldest first.
pub fn controls(registry: &ResourceRegistry) -> Vec<(RegistryOwner, PathBuf, PathBuf)> {
    registry.run_controls().into_iter().filter(|(_, control, _)| control.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_wish_halts_only_its_cell() {
        let wishes = ControlRequests::for_cells(3);
        assert!(!wishes.begin([0].into_iter()));
        assert_eq!(wishes.obey(&RunCommand::Skip { position: 0 }), RunReply::Done);
        assert_eq!(wishes.obey(&RunCommand::Skip { position: 2 }), RunReply::Done);
        let stop = AtomicBool::new(false);
        let commands = Mutex::new(Vec::new());
        wishes.fulfilled(&stop, &|command| commands.lock().push(command), || {
            while !wishes.halt().load(Ordering::Relaxed) {
                std::thread::sleep(POLL);
            }
        });
        assert!(wishes.are_skipped() && !stop.load(Ordering::Relaxed));
        let skips = [0, 2].map(|position| RunCommand::Skip { position });
        assert_eq!(commands.into_inner(), skips);
        wishes.end();
        // It already has metrics on record, or has none.
        assert!(matches!(wishes.obey(&RunCommand::Skip { position: 0 }), RunReply::Failed { .. }));
        assert!(!wishes.begin([1].into_iter()) && !wishes.halt().load(Ordering::Relaxed));
        wishes.end();
        assert!(wishes.begin([2].into_iter()));
        assert!(matches!(wishes.obey(&RunCommand::Skip { position: 3 }), RunReply::Failed { .. }));
    }

    #[test]
    fn stop_wish_acts_as_a_signal() {
        let wishes = ControlRequests::for_cells(1);
        let stop = AtomicBool::new(false);
        wishes.begin([0].into_iter());
        wishes.obey(&RunCommand::Stop);
        wishes.fulfilled(&stop, &|_| {}, || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(POLL);
            }
        });
        assert!(wishes.halt().load(Ordering::Relaxed) && !wishes.are_skipped());
    }
}
