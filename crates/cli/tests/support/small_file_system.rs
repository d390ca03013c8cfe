//! A small file system, gone with its value.

/// In memory, as large and with as many files as it may.
pub(crate) struct SmallFileSystem(std::path::PathBuf);

impl SmallFileSystem {
    /// `limits` as the kernel takes them: `size=64m`.
    pub(crate) fn mount(path: std::path::PathBuf, limits: &str) -> SmallFileSystem {
        std::fs::create_dir(&path).unwrap();
        let mounted = SmallFileSystem(path);
        mounted.run(&["mount", "-t", "tmpfs", "-o", limits, "tmpfs"]);
        mounted
    }

    pub(crate) fn grow(&self, size: &str) {
        self.run(&["mount", "-o", &format!("remount,size={size}")]);
    }

    fn run(&self, command: &[&str]) {
        let status =
            std::process::Command::new(command[0]).args(&command[1..]).arg(&self.0).status().unwrap();
        assert!(status.success(), "{command:?} {}", self.0.display());
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
