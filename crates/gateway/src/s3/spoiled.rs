//! Errors of chunked bodies, in the gateway's own words.

/// Why a body in chunks can't be read on. `s3s` hands these on as text, and `input::broken_off` finds them there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("a chunk of the body does not begin with its length in up to 16 hexadecimal digits")]
    Line,
    #[error("a chunk of the body is longer or shorter than announced")]
    Length,
    #[error("the chunks have more bytes than x-amz-decoded-content-length says")]
    TooLong,
    #[error("the body ends before its last chunk, which is empty")]
    NoEnd,
    #[error("the trailer of the body has more than 16 KiB")]
    LongTrailer,
    #[error("SignatureMismatch: the signature does not match a chunk or the trailer")]
    Mismatch,
}

impl ChunkError {
    /// Which of these a text tells of.
    pub(super) fn said_in(text: &str) -> Option<ChunkError> {
        use ChunkError::*;
        let all = [Line, Length, TooLong, NoEnd, LongTrailer, Mismatch];
        all.into_iter().find(|spoiled| text.contains(&spoiled.to_string()))
    }
}
