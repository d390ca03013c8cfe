//! Reads of objects, their heads and listings.

use std::fmt;
use std::time::Duration;

use super::ClientSession;
use super::http::{HttpReply, HttpRequest, RequestFailure, tags};
use super::signing::unescaped;
use crate::model::{ListingEntry, SeenObject};
use crate::script::BodyPace;

/// Prefixes of listings.
const PREFIXES: [&str; 6] = ["", "dir/", "raw/", "tmp/", "dir", "rename/"];
/// More pages than any listing can have.
const MAX_PAGES: usize = 20_000;
/// After all faults have ended, a gateway may still hold back what the store could undo (120 s). It retries every ten
/// minutes what the store has refused.
const SERVED_WITHIN: Duration = Duration::from_secs(30 * 60);
const PAUSE: Duration = Duration::from_secs(2);

pub(super) fn prefix_of(number: u32) -> &'static str {
    PREFIXES[number as usize % PREFIXES.len()]
}

/// Returns whether the answer was about the object.
async fn look_at(session: &ClientSession, key: &str, request: HttpRequest, is_head: bool) -> bool {
    let Some((_, stream)) = session.connect().await else { return false };
    let start = session.model.begin_read();
    let method = request.method;
    let Ok(reply) = session.exchange(stream, request).await else { return false };
    match reply.status {
        200 | 206 => match seen_of(&reply, is_head) {
            Some(seen) => session.model.check_read(method, key, start, Some(&seen)),
            None => session
                .model
                .fail(format!("{method} {key:?}: an answer without a length: {:?}", reply.headers)),
        },
        404 => session.model.check_read(method, key, start, None),
        // Beyond the end of a possible version.
        416 => {}
        400..500 => {
            session.check_refusal(&format!("{method} {key:?}"), &reply);
            return false;
        }
        _ => return false,
    }
    true
}

fn seen_of(reply: &HttpReply, is_head: bool) -> Option<SeenObject> {
    let length: u64 = reply.header("content-length")?.parse().ok()?;
    let (range, size) = match reply.header("content-range").filter(|_| reply.status == 206) {
        None => (0..length, length),
        Some(range) => {
            let (bounds, size) = range.strip_prefix("bytes ")?.split_once('/')?;
            let (first, last) = bounds.split_once('-')?;
            (first.parse().ok()?..last.parse::<u64>().ok()? + 1, size.parse().ok()?)
        }
    };
    Some(SeenObject {
        size,
        etag: reply.header("etag").map(str::to_owned),
        id: Some(reply.header("x-amz-meta-id").map(str::to_owned)),
        bytes: (!is_head).then(|| (range, reply.body.clone())),
    })
}

pub(super) async fn get(session: &ClientSession, key: &str, range: Option<(u32, u32)>, pace: BodyPace) {
    let mut request = HttpRequest::new("GET", key);
    request.reads = pace;
    if let Some((offset, length)) = range {
        let last = u64::from(offset) + u64::from(length.max(1)) - 1;
        request = request.header("range", &format!("bytes={offset}-{last}"));
    }
    look_at(session, key, request, false).await;
}

pub(super) async fn head(session: &ClientSession, key: &str) -> bool {
    look_at(session, key, HttpRequest::new("HEAD", key), true).await
}

/// Lists page by page. Returns whether it got the last page.
pub(super) async fn list(session: &ClientSession, prefix: &str, has_delimiter: bool, page: u32) -> bool {
    let start = session.model.begin_read();
    let (mut entries, mut token) = (Vec::new(), None::<String>);
    for _ in 0..MAX_PAGES {
        let mut request = HttpRequest::new("GET", "")
            .query("list-type", "2")
            .query("encoding-type", "url")
            .query("max-keys", &page.to_string())
            .query("prefix", prefix);
        if has_delimiter {
            request = request.query("delimiter", "/");
        }
        if let Some(token) = &token {
            request = request.query("continuation-token", token);
        }
        let Some(reply) = session.ask(request).await else { return false };
        let reply = match reply {
            // An answer of 200 may have an error in its body.
            Ok(reply) if reply.status == 200 && reply.code().is_empty() => reply,
            Ok(reply) if (400..500).contains(&reply.status) => {
                session.check_refusal("LIST", &reply);
                return false;
            }
            Ok(_) | Err(RequestFailure::Broken | RequestFailure::Late | RequestFailure::Left) => {
                return false;
            }
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        entries.extend(entries_of(&text));
        let is_truncated = tags(&text, "IsTruncated").first().is_some_and(|value| value == "true");
        token = tags(&text, "NextContinuationToken").into_iter().next();
        if !is_truncated {
            session.model.check_list(prefix, has_delimiter, start, &entries);
            return true;
        }
        // Without it a client could only begin again, for ever.
        if token.is_none() {
            session.model.fail(format!("LIST {prefix:?}: a page that is not the last has no token"));
            return false;
        }
    }
    session.model.fail(format!("LIST {prefix:?} has more than {MAX_PAGES} pages"));
    false
}

/// The entries of one page, in order. In the answer, groups follow the keys.
fn entries_of(text: &str) -> Vec<ListingEntry> {
    let mut entries: Vec<ListingEntry> = tags(text, "Contents")
        .iter()
        .map(|entry| {
            let one = |name: &str| tags(entry, name).into_iter().next().unwrap_or_default();
            ListingEntry::Key {
                key: unescaped(&one("Key")),
                size: one("Size").parse().unwrap_or(u64::MAX),
                etag: one("ETag"),
            }
        })
        .collect();
    let groups = tags(text, "CommonPrefixes");
    entries.extend(
        groups
            .iter()
            .flat_map(|group| tags(group, "Prefix"))
            .map(|group| ListingEntry::Group(unescaped(&group))),
    );
    entries.sort_by(|one, other| one.name().cmp(other.name()));
    entries
}

/// Reads every key that was ever written, in all ways. All faults have to be over: then each read gets an answer in the
/// end.
pub(crate) async fn verify(session: &ClientSession) {
    for key in session.model.keys() {
        for (method, is_head) in [("GET", false), ("HEAD", true)] {
            let ask = async || look_at(session, &key, HttpRequest::new(method, &key), is_head).await;
            if !is_served(session, format_args!("{method} {key:?}"), ask).await {
                return;
            }
        }
    }
    for prefix in PREFIXES {
        for (has_delimiter, page) in [(false, 1000), (true, 1000), (true, 2)] {
            let ask = async || list(session, prefix, has_delimiter, page).await;
            if !is_served(session, format_args!("LIST {prefix:?}"), ask).await {
                return;
            }
        }
    }
}

/// Asks until there is an answer. False when none comes in time, or the model has found a fault.
async fn is_served(
    session: &ClientSession,
    request: fmt::Arguments<'_>,
    ask: impl AsyncFn() -> bool,
) -> bool {
    let deadline = session.world.now() + SERVED_WITHIN;
    loop {
        let has_answer = ask().await;
        if has_answer || session.model.failure().is_some() {
            return session.model.failure().is_none();
        }
        if session.world.now() > deadline {
            session.model.fail(format!("{request}: not answered although nothing fails"));
            return false;
        }
        session.world.sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_page_has_keys_and_groups_in_order() {
        let text = "<R><IsTruncated>false</IsTruncated><Contents><Key>b%2Bc</Key><Size>3</Size><ETag>&quot;e&quot;</ETag></Contents>\
                    <CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes></R>";
        let key = ListingEntry::Key { key: "b+c".to_owned(), size: 3, etag: "\"e\"".to_owned() };
        assert_eq!(entries_of(text), [ListingEntry::Group("a/".to_owned()), key]);
    }

    #[test]
    fn range_is_read_from_answer() {
        let reply = |status, headers: &[(&str, &str)]| HttpReply {
            status,
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: "abc".into(),
        };
        let seen = seen_of(&reply(206, &[("content-length", "3"), ("content-range", "bytes 4-6/20")]), false)
            .unwrap();
        assert_eq!((seen.size, seen.bytes.unwrap().0), (20, 4..7));
        let seen = seen_of(&reply(200, &[("content-length", "3"), ("x-amz-meta-id", "7")]), true).unwrap();
        assert!(seen.size == 3 && seen.bytes.is_none() && seen.id == Some(Some("7".to_owned())));
        assert!(seen_of(&reply(200, &[]), true).is_none());
    }
}
