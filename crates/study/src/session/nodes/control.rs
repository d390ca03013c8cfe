//! Commands for the nodes of a system under load, from other processes of the same user: `underlay node`.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::Scope;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_attach::registry::{OwnedResource, RegistryOwner};
use underlay_attach::{AttachError, OwnFolder, RegistryNote, ResourceRegistry};
use underlay_files::control_socket::{Answer, ControlSocket};
use underlay_record::NodeState;
use underlay_sync::Mutex;

use super::NodeDesk;

/// The longest command, in bytes with its newline.
const MAX_LINE_BYTES: u64 = 4096;
const PURPOSE: &str = "nodes";
const SOCKET: &str = "control";
const POLL: Duration = Duration::from_millis(50);

/// A command: `{"command":"kill","node":"shard1-node2"}`. A choice as in studies may replace the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum NodeCommand {
    List,
    Stop { node: String },
    Kill { node: String },
    Start { node: String },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum NodeReply {
    Nodes {
        nodes: Vec<NodeState>,
    },
    /// The affected node.
    Done {
        node: String,
    },
    Failed {
        problem: String,
    },
}

impl NodeReply {
    pub(super) fn failed(problem: String) -> NodeReply {
        NodeReply::Failed { problem }
    }
}

type NodeRequest = (NodeCommand, Sender<NodeReply>);

/// Accepts commands until it is dropped.
pub(super) struct NodeControl {
    socket: Option<ControlSocket>,
    folder: Option<OwnFolder>,
    registry: ResourceRegistry,
    note: Option<RegistryNote>,
}

impl NodeControl {
    /// Listens on a socket for this user only, registers it, and passes commands to `desk`. Threads of `scope` carry
    /// them out and end with this.
    ///
    /// # Errors
    /// When the socket can't be made.
    pub(super) fn listen<'scope, 'env: 'scope>(
        desk: &'scope NodeDesk<'env>,
        registry: &ResourceRegistry,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<NodeControl, AttachError> {
        let folder = OwnFolder::temporary(PURPOSE, registry)?;
        let path = folder.path().join(SOCKET);
        let note = registry.note(OwnedResource::Nodes { control: path.clone() })?;
        let (sender, receiver) = mpsc::channel::<NodeRequest>();
        let sender = Mutex::new(sender);
        let answer = move |line: &[u8]| Answer::from(ask(line, &sender));
        let mut control =
            NodeControl { socket: None, folder: Some(folder), registry: registry.clone(), note: Some(note) };
        let listening = ControlSocket::listen(&path, MAX_LINE_BYTES, answer);
        control.socket = Some(listening.map_err(|error| AttachError::io("listen on", &path, error))?);
        scope.spawn(move || {
            loop {
                match receiver.recv_timeout(POLL) {
                    // A start takes a while, and other commands may arrive meanwhile.
                    Ok((command, reply)) => drop(scope.spawn(move || {
                        // Fails only if the asker has disconnected.
                        let _ = reply.send(desk.obey(&command));
                    })),
                    Err(RecvTimeoutError::Timeout) if !desk.shared.inner.lock().is_over() => {}
                    Err(_) => return,
                }
            }
        });
        Ok(control)
    }
}

impl Drop for NodeControl {
    fn drop(&mut self) {
        self.socket.take();
        self.folder.take();
        if let Some(note) = self.note.take() {
            self.registry.forget(note);
        }
    }
}

fn ask(line: &[u8], to: &Mutex<Sender<NodeRequest>>) -> NodeReply {
    let command = match serde_json::from_slice(line) {
        Ok(command) => command,
        Err(error) => return NodeReply::failed(format!("not a command: {error}")),
    };
    let over = || NodeReply::failed("the measurement has ended".to_owned());
    let (reply, answer) = mpsc::channel();
    if to.lock().send((command, reply)).is_err() {
        return over();
    }
    answer.recv().unwrap_or_else(|_| over())
}

/// The sockets of this user's living processes that accept commands for nodes, oldest first.
pub fn controls(registry: &ResourceRegistry) -> Vec<(RegistryOwner, PathBuf)> {
    registry.node_controls().into_iter().filter(|(_, control)| control.exists()).collect()
}
