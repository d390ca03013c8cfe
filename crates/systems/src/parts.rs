//! A running system's parts: its processes, and the data of each. It follows from settings and directories, so that
//! nobody has to be asked.

use std::path::{Path, PathBuf};

use crate::storage_paths::NodePaths;

/// A process of a system, or a few that do one thing together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemPart {
    /// As [`PlannedNode::name`](crate::nodes::PlannedNode::name), where it is a node that can go away.
    pub name: String,
    /// `NameNode`, `tablet server`.
    pub what: &'static str,
    /// The machine that it stands for together with others that say the same; `None` where it stands for one alone.
    pub machine: Option<String>,
    /// No client has to do with it.
    pub is_background: bool,
    /// The names of those that it sends its own requests to.
    pub uses: Vec<String>,
    /// Its data in the system's directories, or below.
    pub keeps: Vec<(String, PathBuf)>,
}

impl SystemPart {
    pub(crate) fn new(name: impl Into<String>, kind: &'static str) -> SystemPart {
        SystemPart { name: name.into(), what: kind, ..SystemPart::default() }
    }

    pub(crate) fn background(self) -> SystemPart {
        SystemPart { is_background: true, ..self }
    }

    pub(crate) fn on_machine(self, machine: String) -> SystemPart {
        SystemPart { machine: Some(machine), ..self }
    }

    pub(crate) fn using<'a>(mut self, others: impl IntoIterator<Item = &'a SystemPart>) -> SystemPart {
        self.uses.extend(others.into_iter().map(|other| other.name.clone()));
        self
    }

    pub(crate) fn keeping(mut self, content: &str, directory: &Path) -> SystemPart {
        let entry = (content.to_owned(), directory.to_owned());
        if !self.keeps.contains(&entry) {
            self.keeps.push(entry);
        }
        self
    }

    pub(crate) fn keeping_in<'a>(
        self,
        content: &str,
        directories: impl IntoIterator<Item = &'a PathBuf>,
    ) -> SystemPart {
        directories.into_iter().fold(self, |part, directory| part.keeping(content, directory))
    }

    /// Data in every directory of a node, and each role in its own.
    pub(crate) fn keeping_all(self, node: &NodePaths) -> SystemPart {
        let part = self.keeping_in("data", &node.data);
        node.roles.iter().fold(part, |part, (role, directory)| part.keeping(role, directory))
    }
}
