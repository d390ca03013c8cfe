//! `visibility` of a `[workload.NAME]`: the labels of fields, and their readers.

use underlay_config::keys::{AnyText, KeyKind, KeyRow, OwnSchema, ShareKind, one_or_many_schema};
use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};
use underlay_systems::system::Visibility;

/// Deeper nesting must be a mistake.
const MAX_DEPTH: u32 = 32;

pub(super) const VISIBILITY: KeyRow<AnyText> = KeyRow::new(
    "visibility",
    AnyText("an expression such as \"secret&(a|b)\""),
    "\"secret&(a|b)\"",
    "The label of every field, for a system that hides cells from readers.",
);
pub(super) const AUTHORIZATIONS: KeyRow<OwnSchema> = KeyRow::new(
    "authorizations",
    OwnSchema(|| one_or_many_schema(AnyText("").schema())),
    "[\"secret\", \"a\"]",
    "The authorisations of readers.",
);
pub(super) const UNAUTHORIZED_SHARE: KeyRow<ShareKind> = KeyRow::new(
    "unauthorized_share",
    ShareKind,
    "0.1",
    "The share of clients that read without any authorisation.",
)
.or("0");

/// Reads `visibility`, `authorizations` and `unauthorized_share`.
pub(in crate::spec) fn read(
    section: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<Visibility>> {
    let keys = [VISIBILITY.name, AUTHORIZATIONS.name, UNAUTHORIZED_SHARE.name];
    let [expression, authorizations, share] = section.take_each(keys);
    let Some(expression) = expression else {
        for field in [authorizations, share].into_iter().flatten() {
            let message = format!("{} goes only with `visibility`", field.place);
            let label = "expected `visibility = \"secret&(a|b)\"` beside it";
            findings.push(Diagnostic::error(field.key_span, message, label));
        }
        return None;
    };
    let text = VISIBILITY.kind.read(&expression, findings)?;
    let unauthorized_share = match share {
        Some(field) => UNAUTHORIZED_SHARE.kind.read(&field, findings)?.value,
        None => UNAUTHORIZED_SHARE.default_value(),
    };
    let Some(field) = authorizations else {
        let message = format!("{} without `authorizations`", expression.place);
        let label = "expected the readers' authorisations, as in `authorizations = [\"secret\", \"a\"]`";
        findings.push(Diagnostic::error(expression.span, message, label));
        return None;
    };
    let named = field.list(findings, |element, findings| {
        let word = element.text("a word of the expression", findings)?;
        if !word.value.chars().all(is_word) || word.value.is_empty() {
            element.invalid("expected letters, digits and any of _ - : . /", findings);
            return None;
        }
        Some(word)
    });
    let authorizations: Vec<String> = named.into_iter().map(|word| word.value).collect();
    match satisfied(&text.value, &authorizations) {
        Err(problem) => {
            let message = format!("wrong value for {}", expression.place);
            findings.push(
                Diagnostic::error(text.span, message, problem)
                    .with_help("words joined by & or |, in brackets where both are used: \"secret&(a|b)\""),
            );
            None
        }
        // An empty list has its own finding.
        Ok(false) if !authorizations.is_empty() => {
            let message = format!("{} do not satisfy the visibility", field.place);
            findings.push(
                Diagnostic::error(field.span, message, "readers with these would read nothing")
                    .with_context(text.span, "the label of every field"),
            );
            None
        }
        Ok(_) => {
            let value = Visibility { expression: text.value, authorizations, unauthorized_share };
            Some(Spanned::new(value, text.span))
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | '.' | '/')
}

/// Whether readers with these authorisations see data labelled with the expression.
///
/// # Errors
/// The mistake in the expression, in words.
fn satisfied(expression: &str, authorizations: &[String]) -> Result<bool, String> {
    let mut rest = expression;
    let value = joined(&mut rest, authorizations, 0)?;
    match rest.chars().next() {
        None => Ok(value),
        Some(c) => Err(format!("nothing may follow here: '{}'", c.escape_debug())),
    }
}

/// Terms joined by the same operator.
fn joined(rest: &mut &str, authorizations: &[String], depth: u32) -> Result<bool, String> {
    if depth > MAX_DEPTH {
        return Err("too many brackets".to_owned());
    }
    let mut value = term(rest, authorizations, depth)?;
    let mut operator = None;
    while let Some(c) = rest.chars().next().filter(|c| matches!(c, '&' | '|')) {
        if operator.replace(c).is_some_and(|earlier| earlier != c) {
            return Err("& and | stand side by side without brackets".to_owned());
        }
        *rest = &rest[1..];
        let next = term(rest, authorizations, depth)?;
        value = if c == '&' { value && next } else { value || next };
    }
    Ok(value)
}

fn term(rest: &mut &str, authorizations: &[String], depth: u32) -> Result<bool, String> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner;
        let value = joined(rest, authorizations, depth + 1)?;
        *rest = rest.strip_prefix(')').ok_or("a bracket is not closed")?;
        return Ok(value);
    }
    let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    if word.is_empty() {
        return Err(match rest.chars().next() {
            None => "a word is missing at the end".to_owned(),
            Some(c) => format!("expected a word before '{}'", c.escape_debug()),
        });
    }
    *rest = after;
    Ok(authorizations.iter().any(|authorization| authorization == word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sees(expression: &str, words: &[&str]) -> Result<bool, String> {
        satisfied(expression, &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn record_with_matching_labels_is_visible() {
        assert_eq!(sees("secret&(a|b)", &["secret", "b"]), Ok(true));
        assert_eq!(sees("secret&(a|b)", &["a", "b"]), Ok(false));
        assert_eq!(sees("a|b|c", &["c"]), Ok(true));
        assert_eq!(sees("(a&b)|c", &["a"]), Ok(false));
    }

    #[test]
    fn invalid_expression_is_refused() {
        for wrong in ["", "a&", "&a", "(a", "a)", "a&b|c", "a b", "()", "ä"] {
            assert!(sees(wrong, &[]).is_err(), "{wrong}");
        }
        assert!(sees(&"(".repeat(100_000), &[]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[ab&|() ä]{0,40}") {
            let _ = sees(&text, &["a"]);
        }

        /// More authorisations never hide what fewer show.
        #[test]
        fn authorisations_only_add(text in "[abc]([&][abc]|[|][abc]){0,1}") {
            let few = sees(&text, &["a"]).unwrap();
            prop_assert!(!few || sees(&text, &["a", "b"]).unwrap());
            prop_assert!(sees(&text, &["a", "b", "c"]).unwrap());
        }
    }
}
