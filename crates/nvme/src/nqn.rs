//! Qualified names of hosts and subsystems (base 4.5), and what of them is taken from others.

use crate::fabrics::{DISCOVERY_NQN, NQN_BYTES};

/// Names that stand for a UUID.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A mistake in a qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    #[error("it has more than {NQN_BYTES} bytes")]
    TooLong,
    #[error("it does not begin with \"nqn.\", a year and a month, as in \"nqn.2014-08.\"")]
    Date,
    #[error("its date is not followed by a domain, its parts in reverse, as in \"nqn.2014-08.org.example:\"")]
    Domain,
    #[error("its domain is not followed by a colon and a name, as in \"nqn.2014-08.org.example:one\"")]
    Name,
    #[error("the part after \"uuid:\" is not a UUID")]
    Uuid,
    #[error("it has a blank, a control character, or bytes that are not UTF-8")]
    Letter,
}

/// Checks the syntax of a name: `nqn.2014-08.org.example:one`, one with a UUID, or the one of discovery.
///
/// # Errors
/// The mistake in it.
pub fn check(nqn: &str) -> Result<(), NqnError> {
    if nqn == DISCOVERY_NQN {
        return Ok(());
    }
    if nqn.len() > NQN_BYTES {
        return Err(NqnError::TooLong);
    }
    if !has_letters_of_a_name(nqn) {
        return Err(NqnError::Letter);
    }
    if let Some(uuid) = nqn.strip_prefix(UUID_PREFIX) {
        return if is_uuid(uuid) { Ok(()) } else { Err(NqnError::Uuid) };
    }
    let rest = nqn.strip_prefix("nqn.").and_then(after_date).ok_or(NqnError::Date)?;
    let (domain, name) = rest.split_once(':').ok_or(NqnError::Name)?;
    if !domain.split('.').all(is_label) {
        return Err(NqnError::Domain);
    }
    if name.is_empty() { Err(NqnError::Name) } else { Ok(()) }
}

/// The same of a host, which can't have the name of discovery.
///
/// # Errors
/// The mistake in it.
pub fn check_host(nqn: &str) -> Result<(), NqnError> {
    if nqn == DISCOVERY_NQN { Err(NqnError::Name) } else { check(nqn) }
}

/// Whether a foreign target's subsystem can be called like this. Targets name theirs more freely than the specification
/// does; what would harm a log, a terminal or the next reader's field is refused.
pub fn is_usable(nqn: &str) -> bool {
    !nqn.is_empty() && nqn.len() <= NQN_BYTES && has_letters_of_a_name(nqn)
}

fn has_letters_of_a_name(nqn: &str) -> bool {
    // The replacement character stands for what was no text.
    let is_harmful =
        |letter: char| letter.is_control() || letter.is_whitespace() || letter == char::REPLACEMENT_CHARACTER;
    !nqn.contains(is_harmful)
}

/// The part after `2014-08.`.
fn after_date(text: &str) -> Option<&str> {
    let (date, rest) = text.split_at_checked("yyyy-mm.".len())?;
    let date = date.strip_suffix('.')?;
    let (year, month) = date.split_once('-')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_month = month.parse::<u8>().is_ok_and(|month| (1..=12).contains(&month));
    (year.len() == 4 && digits(year) && digits(month) && is_month).then_some(rest)
}

fn is_label(label: &str) -> bool {
    let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_plain && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
}

/// A UUID as text: 8-4-4-4-12 hexadecimal digits.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = base16ct::lower::encode_string(uuid);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uuid_is_written_in_five_groups() {
        let uuid: [u8; 16] = std::array::from_fn(|index| index as u8 * 0x11);
        assert_eq!(uuid_text(&uuid), "00112233-4455-6677-8899-aabbccddeeff");
        assert!(is_uuid(&uuid_text(&uuid)));
    }

    #[test]
    fn names_of_both_forms_are_valid() {
        for name in [
            "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
            "nqn.2014-08.org.nvmexpress:uuid:6F1C5C1E-0203-4000-8000-0123456789AB",
            "nqn.2014-08.com.vmware:nvme:esx-1",
            "nqn.2008-12.com.example-storage:array.1:a_b",
            "nqn.2025-11.internal.underlay:tank:data",
            "nqn.2014-08.org:x",
        ] {
            assert_eq!(check_host(name), Ok(()), "{name}");
        }
        assert_eq!((check(DISCOVERY_NQN), check_host(DISCOVERY_NQN)), (Ok(()), Err(NqnError::Name)));
    }

    #[test]
    fn invalid_name_is_explained() {
        for (name, expected) in [
            ("", NqnError::Date),
            ("hello", NqnError::Date),
            ("iqn.1994-05.com.example:abc", NqnError::Date),
            ("host with blanks", NqnError::Letter),
            ("nqn.", NqnError::Date),
            ("nqn.x:y", NqnError::Date),
            ("nqn.2014-13.org.example:a", NqnError::Date),
            ("nqn.2014-8.org.example:a", NqnError::Date),
            ("nqn.214-08.org.example:a", NqnError::Date),
            ("NQN.2014-08.org.example:a", NqnError::Date),
            ("nqn.2014-08.:a", NqnError::Domain),
            ("nqn.2014-08.org..example:a", NqnError::Domain),
            ("nqn.2014-08.-org:a", NqnError::Domain),
            ("nqn.2014-08.o_rg:a", NqnError::Domain),
            ("nqn.2014-08.org.example", NqnError::Name),
            ("nqn.2014-08.org.example:", NqnError::Name),
            ("nqn.2014-08.org.nvmexpress:uuid:", NqnError::Uuid),
            ("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-55555555555", NqnError::Uuid),
            ("nqn.2014-08.org.nvmexpress:uuid:g1111111-2222-3333-4444-555555555555", NqnError::Uuid),
            ("nqn.2014-08.org.example:a b", NqnError::Letter),
            ("nqn.2014-08.org.example:a\u{7}", NqnError::Letter),
            ("nqn.2014-08.org.example:a\u{fffd}", NqnError::Letter),
        ] {
            assert_eq!(check_host(name), Err(expected), "{name:?}");
        }
        let long = |bytes: usize| format!("nqn.2014-08.org.example:{}", "x".repeat(bytes - 24));
        assert_eq!(check(&long(NQN_BYTES)), Ok(()));
        assert_eq!(check(&long(NQN_BYTES + 1)), Err(NqnError::TooLong));
        // No letter is cut in two where the date is looked for.
        assert_eq!(check("nqn.2014-0\u{e9}\u{e9}"), Err(NqnError::Date));
    }

    proptest! {
        #[test]
        fn name_of_any_text_never_panics(text in "\\PC{0,40}", tail in "[a-z0-9.:-]{0,60}") {
            for name in [text.clone(), format!("nqn.{text}"), format!("nqn.2014-08.{tail}")] {
                prop_assert!(check(&name).is_err() || is_usable(&name));
            }
        }
    }
}
