//! A store's message, for people. S3 answers errors with a document, which may quote the request and the key that
//! signed it: its code and message are enough, and for the codes that an operator meets there is what to do.

/// Codes of S3 (API reference, "Error responses"), and where to look.
const HINTS: [(&[&str], &str); 7] = [
    (&["SignatureDoesNotMatch", "InvalidAccessKeyId"], "wrong `key_id` or secret in [s3]"),
    (
        &["AccessDenied", "AllAccessDisabled"],
        "the store denies it to the gateway's key; S3 also denies a missing object if the key may not list the bucket (s3:ListBucket)",
    ),
    (&["NoSuchBucket"], "the store has no such bucket: see `store` of [bucket.*]"),
    (
        &["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"],
        "the bucket is in another region or at another endpoint: see `region` and `endpoint` of [s3]",
    ),
    (&["RequestTimeTooSkewed"], "the clocks of the store and of this machine are too far apart"),
    (
        &["ExpiredToken", "InvalidToken", "TokenRefreshRequired"],
        "the token of this machine's identity has expired",
    ),
    (&["SlowDown", "ServiceUnavailable", "InternalError"], "the store is busy or has an internal fault"),
];
/// A message is quoted up to here: nobody knows what a store may write into it.
const MAX_MESSAGE_CHARACTERS: usize = 200;
const MAX_TEXT_CHARACTERS: usize = 1000;

/// In one line, with the advice in front if there is some.
pub(super) fn text_of(error: &object_store::Error) -> String {
    match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            denied(error)
        }
        other => said(other),
    }
}

fn said(error: &object_store::Error) -> String {
    let text = format!("{error}{}", innermost(error));
    document(&text).unwrap_or_else(|| without_document(&text))
}

/// The same of a request that the store denies. An answer to HEAD has no document.
fn denied(error: &object_store::Error) -> String {
    document(&error.to_string()).unwrap_or_else(|| {
        format!(
            "the store denies it to the gateway; S3 also denies a missing object if the gateway may not list the bucket (s3:ListBucket): {}",
            without_document(&error.to_string())
        )
    })
}

/// The message of S3's error document in a text. `object_store` keeps the type that has it to itself, and prints it.
fn document(text: &str) -> Option<String> {
    let code = between(text, "Code")?;
    let message = between(text, "Message").unwrap_or_default();
    let advice = HINTS.iter().find(|(codes, _)| codes.contains(&&*code)).map(|(_, advice)| *advice);
    let colon = if message.is_empty() { "" } else { ": " };
    let answer = format!("the store answered {code}{colon}{message}");
    Some(advice.map_or_else(|| answer.clone(), |advice| format!("{advice} ({answer})")))
}

/// A proxy answers by a page of its own, which says little and is long.
fn without_document(text: &str) -> String {
    let page = ["<!", "<html", "<HTML", "<?xml"].iter().filter_map(|begin| text.find(begin)).min();
    let text = text[..page.unwrap_or(text.len())].trim_end().trim_end_matches(':');
    let text: String = text.chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARACTERS).collect();
    match page {
        Some(_) => format!("{text} with a page that is not an S3 error: is `endpoint` of [s3] an S3 store?"),
        None => text,
    }
}

/// The text of the first element of this name, without what a terminal would carry out.
fn between(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let text: String = text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARACTERS).collect();
    Some(text.trim().to_owned())
}

/// The innermost cause says most (a refused connection, a certificate that nobody trusts), and what is around it leaves
/// it out.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let (text, cause_text) = (error.to_string(), cause.to_string());
    if text.contains(&cause_text) { String::new() } else { format!(": {cause_text}") }
}

/// For the fuzzer: any text as a store's error. The printed text stays short and in one line.
pub(crate) fn read_any(text: &str) {
    let most = MAX_TEXT_CHARACTERS + 4 * MAX_MESSAGE_CHARACTERS;
    for printed in document(text).into_iter().chain([without_document(text)]) {
        assert!(printed.chars().count() <= most && !printed.chars().any(char::is_control), "{printed:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_store_secret_is_named_without_its_document() {
        let body = "<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated does not match</Message>\
                    <AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256</StringToSign><StringToSignBytes>41 57 53 34</StringToSignBytes></Error>";
        let printed = format!(
            "Generic S3 error: Error performing GET http://store/b in 1ms - Server returned non-2xx status code: 403 Forbidden: {body}"
        );
        let text = document(&printed).unwrap();
        assert!(text.starts_with("wrong `key_id` or secret in [s3]"), "{text}");
        assert!(text.contains("SignatureDoesNotMatch: The request signature"), "{text}");
        assert!(!text.contains("AKIAEXAMPLE") && !text.contains("41 57") && !text.contains('<'), "{text}");
    }

    #[test]
    fn store_error_text_is_short_and_single_line() {
        let body =
            format!("<Error><Code>Odd</Code><Message>a\n\u{1b}[31m{}</Message></Error>", "x".repeat(5000));
        let text = document(&body).unwrap();
        assert!(text.starts_with("the store answered Odd: a[31mxxx") && text.len() < 300, "{text}");
        let page =
            without_document("Server returned non-2xx status code: 502 Bad Gateway: <html>proxy</html>");
        assert!(page.contains("502 Bad Gateway with a page") && !page.contains("proxy"), "{page}");
        assert_eq!(without_document("connection refused"), "connection refused");
        for (codes, advice) in HINTS {
            for code in codes {
                assert!(
                    document(&format!("<Error><Code>{code}</Code></Error>")).unwrap().starts_with(advice)
                );
            }
        }
    }
}
