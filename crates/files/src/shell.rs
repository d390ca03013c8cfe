//! Texts as words of a POSIX shell. All text that we write for a shell goes through here.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Characters that every shell reads as themselves, anywhere in a word.
const PLAIN: &[u8] = b"_-./:=@%+,";

/// A text as one word of a shell.
pub fn word(text: &str) -> Cow<'_, str> {
    match is_plain(text.as_bytes()) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(String::from_utf8_lossy(&quoted(text.as_bytes())).into_owned()),
    }
}

/// A path as one word of a shell, regardless of its bytes.
pub fn path_word(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    if is_plain(bytes) { bytes.to_vec() } else { quoted(bytes) }
}

fn is_plain(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || PLAIN.contains(byte))
}

/// Between single quotes nothing means anything but a single quote, which is put beside them.
fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in bytes {
        match byte {
            b'\'' => word.extend(br"'\''"),
            other => word.push(other),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    #[test]
    fn shell_quoting_reads_back_as_one_word() {
        for text in [
            "/usr/bin/java",
            "/home/o'neil/jdk 21/bin/java",
            "",
            "a b",
            "$(id)",
            "`id`",
            "a\\'b\"c",
            "*\n;&|<>~#!é",
        ] {
            let script = format!("printf '%s' {}", word(text));
            let output = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{script}");
        }
        assert_eq!(word("plain-1./:=@%+,"), "plain-1./:=@%+,");
        assert_eq!(word("o'hara"), r"'o'\''hara'");
    }

    #[test]
    fn shell_path_keeps_its_bytes() {
        let path = Path::new(OsStr::from_bytes(b"/a\xff'b"));
        assert_eq!(path_word(path), b"'/a\xff'\\''b'");
        assert_eq!(path_word(Path::new("/usr/bin/unshare")), b"/usr/bin/unshare");
    }
}
