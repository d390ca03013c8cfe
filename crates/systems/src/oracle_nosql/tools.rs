//! Running the tools of a store, one at a time, as long as somebody wants to know what they print.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use underlay_sync::{Condvar, Mutex};

use super::NAME;
use crate::java::Java;
use crate::java_server::JavaServer;
use crate::system::{SystemError, SystemResources};

/// How soon a tool ends that nobody wants any more.
const POLL: Duration = Duration::from_millis(50);
/// The topology of a large store has some 100 KiB.
const MAX_PRINTED_BYTES: u64 = 16 << 20;

/// Whose turn it is: each tool has its files, so one runs at a time.
#[derive(Default)]
pub(super) struct ToolQueue {
    busy: Mutex<bool>,
    changed: Condvar,
}

/// Frees the place of a tool when it is dropped.
struct ToolPermit<'a>(&'a ToolQueue);

impl Drop for ToolPermit<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.changed.notify_one();
    }
}

impl ToolQueue {
    /// A tool's output, regardless of its exit status, which depends on the store's state. It is killed once it is
    /// `unwanted`. `resources` are those of the store.
    ///
    /// # Errors
    /// When it can't be run, takes longer than `limit`, or is unwanted, also while it waits for its turn.
    pub(super) fn run(
        &self,
        tool: &JavaServer,
        (java, resources): (&Java, &SystemResources),
        (during, limit): (&'static str, Duration),
        unwanted: &dyn Fn() -> bool,
    ) -> Result<String, SystemError> {
        let name = &tool.name;
        let given_up = || SystemError::failed(NAME, during, format!("{name} is not wanted any more"));
        let _turn = self.turn(unwanted).ok_or_else(given_up)?;
        // Dropped, and so killed, wherever this returns early.
        let process = tool.start(java, &resources.for_tools())?;
        let (state, began) = (process.state(), Instant::now());
        while !state.wait(POLL) {
            if unwanted() {
                return Err(given_up());
            }
            if began.elapsed() > limit {
                let problem = format!("{name} did not finish within {:.0} s", limit.as_secs_f64());
                return Err(state.failed(during, problem));
            }
        }
        printed(&tool.log()).map_err(|problem| {
            SystemError::failed(NAME, during, format!("the output of {name} is lost: {problem}"))
        })
    }

    fn turn(&self, unwanted: &dyn Fn() -> bool) -> Option<ToolPermit<'_>> {
        let mut busy = self.busy.lock();
        while *busy {
            busy = self.changed.wait_timeout(busy, POLL);
            if unwanted() {
                return None;
            }
        }
        *busy = true;
        Some(ToolPermit(self))
    }
}

/// A tool's whole output: the end of a report alone would mislead.
fn printed(log: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(log).map_err(|error| error.to_string())?;
    file.take(MAX_PRINTED_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_PRINTED_BYTES {
        return Err(format!("{} has more than {} MiB", log.display(), MAX_PRINTED_BYTES >> 20));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::java::ClassPath;

    const LIMIT: Duration = Duration::from_secs(600);

    /// A tool that is the script `text`.
    fn tool(folder: &Path, name: &str, text: &str) -> (JavaServer, Java) {
        let program = folder.join(format!("{name}.sh"));
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let tool = JavaServer {
            system: NAME,
            name: name.to_owned(),
            class: String::new(),
            arguments: Vec::new(),
            class_path: ClassPath::new(),
            heap_bytes: 0,
            direct_bytes: None,
            options: Vec::new(),
            environment: Vec::new(),
            quick_start: true,
            folder: folder.to_owned(),
            namespace: None,
            own_mounts: None,
        };
        (tool, Java { program, version: String::new() })
    }

    #[test]
    fn cancelled_call_waits_for_no_tool_or_permit() {
        let folder = tempfile::TempDir::new().unwrap();
        let (tools, free) = (ToolQueue::default(), SystemResources::unlimited());
        let (hangs, sleep) = tool(folder.path(), "ping", "echo here; exec sleep 600");
        let unwanted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                tools.run(&hangs, (&sleep, &free), ("testing", LIMIT), &|| unwanted.load(Ordering::SeqCst))
            });
            while std::fs::read_to_string(hangs.log()).unwrap_or_default().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let second =
                tools.run(&hangs, (&sleep, &free), ("testing", LIMIT), &|| true).unwrap_err().to_string();
            assert!(second.ends_with("ping is not wanted any more"), "{second}");
            unwanted.store(true, Ordering::SeqCst);
            let first = first.join().unwrap().unwrap_err().to_string();
            assert!(first.ends_with("ping is not wanted any more"), "{first}");
        });
        // The next one has its turn, and its exit status means nothing.
        let (fails, program) = tool(folder.path(), "verify", "echo said; exit 3");
        assert_eq!(tools.run(&fails, (&program, &free), ("testing", LIMIT), &|| false).unwrap(), "said\n");
        let (endless, program) = tool(folder.path(), "topology", "yes shard | head -c 20000000");
        let much =
            tools.run(&endless, (&program, &free), ("testing", LIMIT), &|| false).unwrap_err().to_string();
        assert!(much.contains("more than 16 MiB"), "{much}");
        let late = tools
            .run(&hangs, (&sleep, &free), ("testing", Duration::ZERO), &|| false)
            .unwrap_err()
            .to_string();
        assert!(late.contains("did not finish within 0 s"), "{late}");
    }
}
