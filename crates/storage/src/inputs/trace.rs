//! A sample of a device's requests: stretches in which none is left out, spread over the whole measurement however long
//! it is.

use crate::medium::{ModelOperation, ModelRequest};

/// A request as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRequest {
    pub operation: ModelOperation,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    pub fua: bool,
    /// Requests in flight when it came, without itself.
    pub depth: u32,
    /// How long the device had been idle, where none was.
    pub idle_ns: u64,
}

/// So many requests follow one another.
const SEGMENT: usize = 512;
/// So many stretches at most: then every other one is dropped, and new ones begin half as often.
const MAX_SEGMENTS: usize = 16;

/// Keeps them while they come; bounded in memory.
#[derive(Clone, Debug, Default)]
pub struct RequestTracer {
    segments: Vec<Vec<TracedRequest>>,
    /// Requests so far.
    seen: u64,
    /// A stretch begins every so many segments' length; 0 stands for 1.
    stride: u64,
}

impl RequestTracer {
    /// A request came, with this many in flight; `idle_ns` counts where there were none.
    pub fn note(&mut self, request: &ModelRequest, depth: u32, idle_ns: u64) {
        let stride = self.stride.max(1);
        let place = self.seen / SEGMENT as u64;
        let begins = self.seen.is_multiple_of(SEGMENT as u64);
        self.seen += 1;
        if !place.is_multiple_of(stride) {
            return;
        }
        if begins {
            if self.segments.len() == MAX_SEGMENTS {
                let mut index = 0;
                self.segments.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride = stride * 2;
                if !place.is_multiple_of(self.stride) {
                    return;
                }
            }
            self.segments.push(Vec::with_capacity(SEGMENT));
        }
        let traced = TracedRequest {
            operation: request.operation,
            offset_bytes: request.offset_bytes,
            length_bytes: request.length_bytes,
            fua: request.fua,
            depth,
            idle_ns: if depth == 0 { idle_ns } else { 0 },
        };
        if let Some(segment) = self.segments.last_mut() {
            segment.push(traced);
        }
    }

    /// The kept requests.
    pub fn into_segments(self) -> Vec<Vec<TracedRequest>> {
        self.segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::RequestId;

    fn traced(requests: u64) -> Vec<Vec<TracedRequest>> {
        let mut tracer = RequestTracer::default();
        for number in 0..requests {
            let request = ModelRequest {
                id: RequestId(number),
                operation: ModelOperation::Read,
                offset_bytes: number,
                length_bytes: 4096,
                fua: false,
            };
            tracer.note(&request, 1, 0);
        }
        tracer.into_segments()
    }

    #[test]
    fn few_requests_are_all_kept() {
        let offsets: Vec<u64> = traced(1300).iter().flatten().map(|one| one.offset_bytes).collect();
        assert_eq!(offsets, (0..1300).collect::<Vec<_>>());
    }

    #[test]
    fn long_trace_keeps_stretches_from_all_over() {
        for requests in [100_000, 1_000_000, 1_234_567] {
            let segments = traced(requests);
            assert!((MAX_SEGMENTS / 2..=MAX_SEGMENTS).contains(&segments.len()), "{}", segments.len());
            for segment in &segments {
                let follows = |pair: &[TracedRequest]| pair[1].offset_bytes == pair[0].offset_bytes + 1;
                assert!(segment.len() <= SEGMENT && segment.windows(2).all(follows));
            }
            let starts: Vec<u64> = segments.iter().map(|segment| segment[0].offset_bytes).collect();
            let step = starts[1] - starts[0];
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == step), "{starts:?}");
            assert!(starts[0] == 0 && starts.last().unwrap() + step * 2 > requests, "{starts:?}");
        }
    }
}
