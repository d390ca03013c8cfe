//! Mixes of one's own, which their names spell out in percent.

/// `80 % reads, 20 % updates` for `read80-update20`; none where the name says no such thing.
pub(crate) fn title(mix: &str) -> Option<String> {
    let share = |part: &str| {
        let digits = part.find(|letter: char| letter.is_ascii_digit())?;
        let (kind, percent) = part.split_at(digits);
        let percent: f64 = percent.parse().ok()?;
        let kinds = match kind {
            "read" => "reads",
            "update" => "updates",
            "insert" => "inserts",
            "scan" => "scans",
            "rmw" => "read-modify-writes",
            "delete" => "deletions",
            _ => return None,
        };
        Some((percent, kinds))
    };
    let shares: Vec<(f64, &str)> = mix.split('-').map(share).collect::<Option<_>>()?;
    Some(match shares.as_slice() {
        [(_, kinds)] => format!("{}{} only", kinds[..1].to_uppercase(), &kinds[1..]),
        many => {
            let words: Vec<String> =
                many.iter().map(|(percent, kinds)| format!("{percent} % {kinds}")).collect();
            words.join(", ")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn names_of_mixes_in_words() {
        assert_eq!(title("update100").unwrap(), "Updates only");
        assert_eq!(title("read80-update20").unwrap(), "80 % reads, 20 % updates");
        assert_eq!(title("scan87.5-rmw12.5").unwrap(), "87.5 % scans, 12.5 % read-modify-writes");
        assert_eq!(["a", "load", "terasort", "read", ""].map(title), [const { None }; 5]);
    }
}
