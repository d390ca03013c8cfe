//! `1m,500k`: a value for reads, one for writes, one for trims, as fio's options have them between commas.

use std::fmt;

/// One to three values. An empty value leaves fio's default, and a missing one is as the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirectionValues<T> {
    parts: Vec<Option<T>>,
}

impl<T: Copy> DirectionValues<T> {
    /// Nothing where a part can't be read, or there are too many.
    pub(super) fn parse(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<DirectionValues<T>> {
        let part = |part: &str| match part.trim() {
            "" => Some(None),
            part => read(part).map(Some),
        };
        let parts: Option<Vec<Option<T>>> = text.split(',').take(4).map(part).collect();
        let parts = parts.filter(|parts| parts.len() <= 3 && parts.iter().any(Option::is_some))?;
        Some(DirectionValues { parts })
    }

    /// The values that are there.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        self.parts.iter().flatten().copied()
    }

    pub(super) fn map<U: Copy>(&self, change: impl Fn(T) -> U) -> DirectionValues<U> {
        DirectionValues { parts: self.parts.iter().map(|part| part.map(&change)).collect() }
    }

    /// For reads, writes and trims, with `default` where it is left to fio.
    pub(super) fn all(&self, default: T) -> [T; 3] {
        [0, 1, 2].map(|index| self.spread(index).unwrap_or(default))
    }

    /// Each value with that of the same kind of request.
    pub(super) fn zip<U: Copy>(&self, others: [U; 3]) -> DirectionValues<(T, U)> {
        // Three, unless the last one is empty: then what follows is left to fio.
        let ends_open = self.parts.len() > 1 && self.parts.last().is_some_and(Option::is_none);
        let count = if ends_open { self.parts.len() } else { 3 };
        let pair = |index: usize| self.spread(index).map(|value| (value, others[index]));
        DirectionValues { parts: (0..count).map(pair).collect() }
    }

    fn spread(&self, index: usize) -> Option<T> {
        self.parts[index.min(self.parts.len() - 1)]
    }
}

impl fmt::Display for DirectionValues<u64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.parts.iter().map(|part| part.map_or_else(String::new, |value| value.to_string())).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<DirectionValues<u64>> {
        DirectionValues::parse(text, |part| part.parse().ok())
    }

    #[test]
    fn missing_value_repeats_last_and_empty_means_default() {
        assert_eq!(read("8").unwrap().all(4), [8, 8, 8]);
        assert_eq!(read("8,32").unwrap().all(4), [8, 32, 32]);
        assert_eq!(read("8,32,").unwrap().all(4), [8, 32, 4]);
        assert_eq!(read(",8").unwrap().all(4), [4, 8, 8]);
        assert_eq!(read("8,").unwrap().zip([1, 2, 3]).map(|(a, b)| a * b).to_string(), "8,");
        assert_eq!(read("8").unwrap().zip([1, 2, 3]).map(|(a, b)| a * b).to_string(), "8,16,24");
        assert_eq!([read(""), read(","), read("1,2,3,4"), read("x")], [None, None, None, None]);
    }
}
