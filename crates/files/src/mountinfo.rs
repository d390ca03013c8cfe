//! The table of mounts of a process: `/proc/PID/mountinfo`, see proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mount_point: PathBuf,
    /// The directory of the file system that shows there; `/` for all of it.
    pub root: PathBuf,
    /// Of this mount alone: `rw,noatime`.
    pub options: String,
    /// Of the file system, for all its mounts.
    pub super_options: String,
    /// `xfs`, `fuse`
    pub filesystem: String,
    /// The device, or the name that a FUSE daemon gave.
    pub source: PathBuf,
    /// Device number as `stat` reports it for files on this mount.
    pub major: u32,
    pub minor: u32,
    /// Nobody else's unmounting reaches it, and its own reaches nobody else.
    pub is_private: bool,
    /// Its own unmounting reaches others.
    pub is_shared: bool,
}

/// Reads mountinfo; lines that make no sense are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    // ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [TAG...] - TYPE SOURCE SUPER-OPTIONS
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let options = fields.next().filter(|options| *options != b"-")?;
    // Any number of tags, up to a hyphen.
    let (mut tags, mut is_shared) = (0, false);
    for tag in fields.by_ref().take_while(|field| *field != b"-") {
        tags += 1;
        is_shared |= tag.starts_with(b"shared:");
    }
    let filesystem = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let super_options = fields.next().unwrap_or_default();
    Some(Mount {
        mount_point,
        root,
        options: String::from_utf8_lossy(options).into_owned(),
        super_options: String::from_utf8_lossy(super_options).into_owned(),
        filesystem,
        source,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        is_private: tags == 0,
        is_shared,
    })
}

/// Blanks, tabs, newlines and backslashes stand there as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)))
            .map(|digits| digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn mountinfo_with_and_without_optional_fields_and_escapes() {
        let text = b"36 35 98:0 / /mnt/with\\040blank rw,noatime master:1 shared:7 - xfs /dev/loop0 rw\n\
                     37 35 0:52 / /run/a\\134b rw - fuse underlay:session-1-1 rw,user_id=0\n\
                     torn line\n38 35 0:x / /y rw - tmpfs tmpfs rw";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].mount_point, Path::new("/mnt/with blank"));
        assert_eq!((mounts[0].options.as_str(), mounts[0].super_options.as_str()), ("rw,noatime", "rw"));
        assert_eq!((mounts[0].major, mounts[0].filesystem.as_str()), (98, "xfs"));
        assert_eq!(mounts[1].mount_point, Path::new("/run/a\\b"));
        assert_eq!(mounts[1].root, Path::new("/"));
        assert_eq!(mounts[1].source, Path::new("underlay:session-1-1"));
        assert!(!mounts[0].is_private && mounts[1].is_private);
        assert!(mounts[0].is_shared && !mounts[1].is_shared);
    }

    #[test]
    fn unfinished_escape_is_kept() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\999"), Path::new("a\\999"));
        assert_eq!(unescape(b"a\\777b\\134"), Path::new("a\\777b\\"));
    }
}
