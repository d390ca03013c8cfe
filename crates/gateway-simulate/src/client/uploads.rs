//! Uploads in parts.

use super::ClientSession;
use super::http::{HttpReply, HttpRequest, tags};
use super::signing::escaped;
use crate::model::{ChangeOutcome, ObjectContent, ObjectVersion};
use crate::script::{ScriptPart, UploadEnd};

/// A part's outcome.
struct SentPart {
    content: ObjectContent,
    etag: String,
}

pub(super) async fn upload(session: &ClientSession, key: &str, parts: &[ScriptPart], end: UploadEnd) {
    let id = session.model.fresh_id();
    let request = HttpRequest::new("POST", key).query("uploads", "").header("x-amz-meta-id", &id);
    let Some(reply) = session.ask(request).await else { return };
    if session.answer_of("CreateMultipartUpload", &reply) != ChangeOutcome::Done {
        return;
    }
    let number = reply.ok().and_then(|reply| tags(&reply.text(), "UploadId").into_iter().next());
    let Some(number) = number else {
        return session.model.fail(format!("CreateMultipartUpload {key:?}: an answer without UploadId"));
    };
    session.model.begin_upload(&number);
    let mut sent = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        if let Some(part) = send_part(session, (key, &number), index + 1, part).await {
            sent.push((index + 1, part));
        }
    }
    match end {
        // The client goes away, and nobody finishes it.
        UploadEnd::Leave => {}
        UploadEnd::Abort => abort(session, key, &number).await,
        UploadEnd::Complete if sent.is_empty() => abort(session, key, &number).await,
        UploadEnd::Complete => complete(session, (key, &number), &id, sent).await,
    }
}

/// Begins uploads, and forgets them.
pub(super) async fn begin(session: &ClientSession, key: &str, count: u32, header_bytes: u32) {
    let value = "x".repeat(header_bytes.min(60_000) as usize);
    for _ in 0..count.min(10_000) {
        let request =
            HttpRequest::new("POST", key).query("uploads", "").header("content-disposition", &value);
        let Some(reply) = session.ask(request).await else { return };
        let is_begun = session.answer_of("CreateMultipartUpload", &reply) == ChangeOutcome::Done;
        let number = reply.ok().and_then(|reply| tags(&reply.text(), "UploadId").into_iter().next());
        number.filter(|_| is_begun).into_iter().for_each(|number| session.model.begin_upload(&number));
    }
}

async fn abort(session: &ClientSession, key: &str, number: &str) {
    let request = HttpRequest::new("DELETE", key).query("uploadId", number);
    let Some(reply) = session.ask(request).await else { return };
    if session.answer_of("AbortMultipartUpload", &reply) == ChangeOutcome::Done {
        session.model.end_upload(number);
    }
}

async fn send_part(
    session: &ClientSession,
    (key, number): (&str, &str),
    part_number: usize,
    part: &ScriptPart,
) -> Option<SentPart> {
    let request =
        HttpRequest::new("PUT", key).query("partNumber", &part_number.to_string()).query("uploadId", number);
    let is_done =
        |reply: &Result<HttpReply, _>| session.answer_of("UploadPart", reply) == ChangeOutcome::Done;
    match *part {
        ScriptPart::Bytes { size } => {
            let content = session.model.fresh(u64::from(size));
            let reply = session.ask(request.body(content.bytes())).await?;
            let reply = Some(reply).filter(is_done)?.ok()?;
            Some(SentPart { content, etag: reply.header("etag")?.to_owned() })
        }
        ScriptPart::Copied { from, at: offset, size } => {
            let from = super::key_of(from);
            let start = session.model.begin_read();
            // One version alone, so that it is known what is copied.
            let version = session.model.versions(from, start).into_iter().next()?;
            let content = version.content.range(u64::from(offset), u64::from(size.max(1)));
            let (first, length) = (u64::from(offset), content.size());
            if length == 0 {
                return None;
            }
            let source = format!("/{}/{}", session.bucket, escaped(from, true));
            let request = request
                .header("x-amz-copy-source", &source)
                .header("x-amz-copy-source-range", &format!("bytes={first}-{}", first + length - 1))
                .header("x-amz-copy-source-if-match", &format!("\"{}\"", version.etag?));
            let reply = session.ask(request).await?;
            let reply = Some(reply).filter(is_done)?.ok()?;
            Some(SentPart { content, etag: tags(&reply.text(), "ETag").into_iter().next()? })
        }
    }
}

async fn complete(
    session: &ClientSession,
    (key, number): (&str, &str),
    id: &str,
    sent: Vec<(usize, SentPart)>,
) {
    let (mut content, mut list) = (ObjectContent::default(), String::new());
    for (part_number, part) in sent {
        list.push_str(&format!(
            "<Part><PartNumber>{part_number}</PartNumber><ETag>{}</ETag></Part>",
            part.etag
        ));
        content.join(part.content);
    }
    let body = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let request = HttpRequest::new("POST", key).query("uploadId", number).body(body.into());
    let Some((gateway, stream)) = session.connect().await else { return };
    let version = ObjectVersion { content, etag: None, id: Some(id.to_owned()) };
    let begun = session.model.begin_put(key, gateway, version);
    let reply = session.exchange(stream, request).await;
    let answer = session.answer_of(&format!("CompleteMultipartUpload {key:?}"), &reply);
    if answer == ChangeOutcome::Done {
        session.model.end_upload(number);
    }
    let etag = reply.ok().and_then(|reply| tags(&reply.text(), "ETag").into_iter().next());
    session.model.end(&begun, answer, etag.as_deref());
}
