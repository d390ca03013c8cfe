//! The console that a run starts beside itself: a process of its own, so that neither's memory or CPU is the other's, and the run goes
//! on whatever becomes of it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::output;

/// It ends with this value, and with this process however that ends.
pub(crate) struct Beside(Option<Child>);

impl Beside {
    /// Starts it for the runs beside this one, and says where it is. Without it, the run goes on and that is said.
    pub(crate) fn start(run: &Path) -> Beside {
        match begin(run) {
            Ok((child, line)) => {
                output::say(line);
                Beside(Some(child))
            }
            Err(problem) => {
                output::say(format_args!("note: there is no console: {problem}"));
                Beside(None)
            }
        }
    }
}

fn begin(run: &Path) -> Result<(Child, String), String> {
    let run = std::path::absolute(run).map_err(|error| error.to_string())?;
    let above = run.parent().unwrap_or(Path::new("/"));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .arg("console")
        .arg(above)
        .args(["--with", &std::process::id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C is for the run; the console ends when that has ended.
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    let mut lines = child.stdout.take().map(BufReader::new);
    let said = lines.as_mut().map(|lines| lines.read_line(&mut line));
    if !matches!(said, Some(Ok(count)) if count > 0) {
        let _ = child.kill();
        let _ = child.wait();
        return Err("it did not start".to_owned());
    }
    // Whatever else it has to say, such as the address for the next browser; the thread ends with it.
    let say = move || lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok).for_each(output::say);
    let _ = std::thread::Builder::new().name("console-says".to_owned()).spawn(say);
    Ok((child, line.trim_end().to_owned()))
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It keeps nothing that would have to be put in order.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
