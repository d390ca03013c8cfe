//! Headless Chromium, driven by its DevTools protocol over a pipe: JSON objects, each ended by a zero byte.
//! <https://chromedevtools.github.io/devtools-protocol/>

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
/// What Chromium answers when a page goes while an expression is in flight.
const GOING: [&str; 3] =
    ["Inspected target navigated or closed", "Cannot find context", "Execution context was destroyed"];
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub(crate) struct Browser {
    child: Child,
    stream: UnixStream,
    unread: Vec<u8>,
    next: u64,
    session: Option<String>,
    /// What the browser held against pages: exceptions, and what a policy forbade.
    pub complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

/// Whether an expression failed because its page went.
fn is_going(error: &Value) -> bool {
    let text = error["message"].as_str().unwrap_or_default();
    GOING.iter().any(|one| text.contains(one))
}

/// Whether there is a browser. In CI, that there is none is a failure; elsewhere it is said.
pub(crate) fn is_there() -> bool {
    let found = NAMES.iter().any(|name| program(name).is_some());
    assert!(
        found || std::env::var_os("CI").is_none(),
        "CI must have chromium (scripts/install-packages test)"
    );
    if !found {
        eprintln!("NOT RUN: this test needs chromium, as `scripts/install-packages test` installs it");
    }
    found
}

fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let profile = tempfile::Builder::new().prefix("underlay-browser-").tempdir().unwrap();
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut command = Command::new(NAMES.iter().find_map(|name| program(name)).unwrap());
        command
            // Tests run as root in containers, where the sandbox can't be had; it opens nothing but our own pages.
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let end = theirs.as_raw_fd();
        // SAFETY: between fork and exec only these calls are made, which may be. It reads from 3 and writes to 4.
        unsafe {
            command.pre_exec(move || {
                let high = libc::fcntl(end, libc::F_DUPFD, 10);
                if high < 0 || libc::dup2(high, 3) < 0 || libc::dup2(high, 4) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(high);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(theirs);
        let mut browser = Browser {
            child,
            stream,
            unread: Vec::new(),
            next: 1,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.open_tab();
        browser
    }

    /// A new tab, which commands go to from now on. The others stay.
    pub(crate) fn open_tab(&mut self) {
        self.session = None;
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let session = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Sends a command, and gives what it came to.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Sends a command, and gives what it came to or the browser's error.
    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.stream.write_all(&bytes).unwrap();
        loop {
            let answer = self.message();
            if answer["id"] == id {
                return match &answer["error"] {
                    Value::Null => Ok(answer["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(event["params"]["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if event["params"]["entry"]["level"] == "error" => {
                self.complaints.push(event["params"]["entry"].to_string());
            }
            _ => {}
        }
    }

    fn message(&mut self) -> Value {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).unwrap();
            }
            let mut chunk = [0; 64 << 10];
            let count = self.stream.read(&mut chunk).expect("the browser answers");
            assert!(count > 0, "the browser has ended");
            self.unread.extend_from_slice(&chunk[..count]);
        }
    }

    /// Opens an address, and waits until the new document is loaded.
    pub(crate) fn go(&mut self, address: &str) {
        // The old document is complete, too: without a mark it would end the wait, and be gone at the next question.
        self.try_value("window.isOld = true");
        let answer = self.call("Page.navigate", json!({ "url": address }));
        assert!(answer["errorText"].is_null(), "{address}: {}", answer["errorText"]);
        let is_loaded =
            "document.readyState === 'complete' && document.body !== null && location.href !== 'about:blank'";
        // Without a loader the document stays: the address differs by its fragment alone.
        match answer["loaderId"].is_string() {
            true => self.wait_for(&format!("window.isOld === undefined && {is_loaded}")),
            false => self.wait_for(is_loaded),
        }
    }

    /// What an expression of the page comes to.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// As [`value`](Self::value), where the page may just be going: then it comes to nothing.
    fn try_value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        match self.try_call("Runtime.evaluate", parameters) {
            Ok(answer) => answer["result"]["value"].clone(),
            Err(error) if is_going(&error) => Value::Null,
            Err(error) => panic!("{expression}: {error}"),
        }
    }

    pub(crate) fn wait_for(&mut self, condition: &str) {
        self.wait_long_for(condition, LIMIT);
    }

    pub(crate) fn wait_long_for(&mut self, condition: &str, limit: Duration) {
        if !self.comes_true(condition, limit) {
            let page =
                self.try_value("location.href + '\\n' + (document.body?.innerText ?? 'no document yet')");
            panic!("waited {limit:?} for {condition} in vain on {}", page.as_str().unwrap_or("no page"));
        }
    }

    /// Whether a condition comes true in time.
    pub(crate) fn comes_true(&mut self, condition: &str, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.try_value(&format!("Boolean({condition})")) != true {
            if begun.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        true
    }

    /// Clicks on what a selector finds, and waits for another page.
    pub(crate) fn follow(&mut self, selector: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        self.wait_for(&element);
        self.value("window.isOld = true");
        // The next page may come before the answer.
        self.try_value(&format!("{element}.click()"));
        self.wait_for(
            "window.isOld === undefined && document.readyState === 'complete' && document.body !== null",
        );
    }

    pub(crate) fn text(&mut self) -> String {
        // A page that leads on by itself has no body for a moment.
        self.wait_for("document.readyState === 'complete' && document.body !== null");
        self.try_value("document.body?.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page shows a text, also where other pages come before it.
    pub(crate) fn wait_for_text(&mut self, text: &str) {
        self.wait_for(&format!("document.body?.innerText.includes({})", json!(text)));
    }

    /// From now on the page is this wide, and `light` or `dark`.
    pub(crate) fn show(&mut self, width: u32, height: u32, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// As it looks, of this width, to a file.
    pub(crate) fn picture(&mut self, width: u32, height: u32, scheme: &str, file: &Path) {
        self.show(width, height, scheme);
        let screenshot =
            self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": false }));
        let bytes =
            base64::engine::general_purpose::STANDARD.decode(screenshot["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // In order, so that its other processes end too.
        let mut bytes = serde_json::to_vec(&json!({ "id": 0, "method": "Browser.close" })).unwrap();
        bytes.push(0);
        let _ = self.stream.write_all(&bytes);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
