//! Names of parts that the store keeps until their upload is over, since the journal has no room for them. A client
//! can't name one: each begins with a zero byte, which no key of S3 has here.

/// The folder of a store where such parts are. No key has a path in it.
pub(crate) const FOLDER: &str = "%underlay-parts";
const MARK: char = '\0';
/// No key of a client comes before it, and no name of a part behind it.
pub(crate) const FIRST_KEY: &str = "\u{1}";
/// Hexadecimal digits of the random number that makes each name unique.
const DIGITS: usize = 32;

/// A name for a part of an upload to `key`. The number has to be one that nobody has had before.
pub(crate) fn name_of(number: u128, key: &str) -> String {
    format!("{MARK}{number:0DIGITS$x}{key}")
}

pub(crate) fn is_staged(name: &str) -> bool {
    name.starts_with(MARK)
}

/// Where the store has the part of this name: `None` for a key of a client.
pub(crate) fn path_of(name: &str) -> Option<String> {
    let number = name.strip_prefix(MARK)?.get(..DIGITS)?;
    Some(format!("{FOLDER}/{number}"))
}

/// The key that decides which slot a name belongs to: a part belongs to the slot of its upload.
pub(crate) fn placing_key(name: &str) -> &str {
    let key = name.strip_prefix(MARK).and_then(|rest| rest.get(DIGITS..));
    key.unwrap_or(name)
}

/// For the fuzzer: any text as a name. Only what no client can name has a path of its own, and that is in the folder.
pub(crate) fn read_any(text: &str) {
    if let Some(path) = path_of(text) {
        assert!(is_staged(text) && path.starts_with(FOLDER), "{text:?}");
    }
    assert!(text.ends_with(placing_key(text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_name_gives_path_and_upload_key() {
        let name = name_of(0xabc, "dir/a");
        assert!(is_staged(&name) && placing_key(&name) == "dir/a");
        let path = path_of(&name).unwrap();
        assert_eq!(path, format!("{FOLDER}/{:032x}", 0xabc));
        assert!(!is_staged(&path) && path_of(&path).is_none());
        assert_eq!(placing_key("dir/a"), "dir/a");
    }

    #[test]
    fn incomplete_part_name_has_no_path() {
        for name in ["\0", "\0abc", ""] {
            assert_eq!(path_of(name), None, "{name:?}");
        }
    }
}
