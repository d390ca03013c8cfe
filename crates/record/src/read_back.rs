//! Whether all writes that a system acknowledged are there, found by reading them afterwards.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of reading back. All numbers are of records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadBackRecord {
    /// Those with a write that was noted.
    pub noted: u64,
    /// One in so many records was noted, chosen by their keys' hashes; 1 is all.
    pub one_in: u64,
    /// Those that were read and could have been wrong.
    pub checked: u64,
    /// They, or one of their fields, are not there.
    pub missing: u64,
    /// Those with a value that an acknowledged write had replaced.
    pub older: u64,
    /// Those with a value that is neither what was written last nor known from before. Without `dataintegrity`, it may
    /// be one from before the measurement.
    pub wrong: u64,
    /// They could not be read.
    pub unreadable: u64,
    /// There was no time left for them.
    pub unchecked: u64,
    /// They were read, and any answer would have been right: nothing of them was acknowledged, or so many of their
    /// writes got no answer that nobody knows what they should hold.
    #[serde(default)]
    pub unjudged: u64,
    /// Writes that were acknowledged, whether of the sample or not; absent where nobody counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    /// Writes of records that came when the sample was full, and are not in it.
    #[serde(default)]
    pub left_out: u64,
    /// The first few that are not as they should be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<LostWrite>,
}

impl ReadBackRecord {
    /// Records that are not as they were acknowledged.
    pub fn lost(&self) -> u64 {
        self.missing + self.older + self.wrong
    }

    fn has_nothing_to_find(&self) -> bool {
        self.acknowledged == Some(0) && self.noted == self.unjudged
    }

    /// Whether nothing is lost as far as was read, every record could be read that there was time for, and there was
    /// something to find.
    pub fn is_sound(&self) -> bool {
        self.lost() == 0 && self.unreadable == 0 && (self.checked > 0 || self.has_nothing_to_find())
    }
}

/// An acknowledged write that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostWrite {
    /// The record's key.
    pub record: String,
    pub field: u32,
    pub problem: LostWriteProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LostWriteProblem {
    Older,
    Wrong,
    Missing,
}

/// `record user7 field 2 is missing`
impl fmt::Display for LostWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostWrite { record, field, problem } = self;
        let problem = match problem {
            LostWriteProblem::Older => "has a value that an acknowledged write had replaced",
            LostWriteProblem::Wrong => "has a value that was not written last",
            LostWriteProblem::Missing => "is missing",
        };
        write!(f, "record {record} field {field} {problem}")
    }
}

/// `1,200 records read back: all as acknowledged`
impl fmt::Display for ReadBackRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} written records were read back", self.checked)?;
        if self.one_in > 1 {
            write!(f, ", a sample of one in {}", self.one_in)?;
        }
        match self.lost() {
            0 if self.checked == 0 && self.has_nothing_to_find() => {
                f.write_str(", since none was acknowledged")?;
            }
            0 if self.checked == 0 => {}
            0 if self.checked == self.noted && self.left_out == 0 => {
                f.write_str(": all acknowledged writes are there")?;
            }
            0 => f.write_str(": their acknowledged writes are there")?,
            _ => {
                write!(f, ": {} missing, {} older, {} wrong", self.missing, self.older, self.wrong)?;
                if let Some(first) = self.examples.first() {
                    write!(f, " (the first: {first})")?;
                }
            }
        }
        if self.left_out > 0 {
            write!(f, "; {} writes of later records were not noted", self.left_out)?;
        }
        for (count, outcome) in [
            (self.unreadable, "could not be read"),
            (self.unchecked, "were not reached in time"),
            (self.unjudged, "could hold anything, since writes of them got no answer"),
        ] {
            if count > 0 {
                write!(f, "; {count} {outcome}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_back_is_summarized_in_a_sentence() {
        let all = ReadBackRecord { noted: 5, one_in: 1, checked: 5, ..ReadBackRecord::default() };
        assert_eq!(all.to_string(), "5 written records were read back: all acknowledged writes are there");
        let example = LostWrite { record: "user7".to_owned(), field: 2, problem: LostWriteProblem::Missing };
        let lost = ReadBackRecord { one_in: 3, missing: 1, unreadable: 2, examples: vec![example], ..all };
        assert_eq!(
            lost.to_string(),
            "5 written records were read back, a sample of one in 3: 1 missing, 0 older, 0 wrong (the first: record user7 field 2 \
             is missing); 2 could not be read"
        );
        assert!(!lost.is_sound());
    }

    #[test]
    fn unread_records_are_not_reported_present() {
        let some =
            ReadBackRecord { noted: 7, one_in: 1, checked: 5, unchecked: 2, ..ReadBackRecord::default() };
        assert_eq!(
            some.to_string(),
            "5 written records were read back: their acknowledged writes are there; 2 were not reached in time"
        );
        assert!(some.is_sound());
        let none = ReadBackRecord { noted: 7, one_in: 1, unreadable: 7, ..ReadBackRecord::default() };
        assert_eq!(none.to_string(), "0 written records were read back; 7 could not be read");
        assert!(!none.is_sound() && !ReadBackRecord { checked: 6, unreadable: 1, ..none }.is_sound());
        assert!(ReadBackRecord { acknowledged: Some(0), ..ReadBackRecord::default() }.is_sound());
        // A record of before these were counted.
        assert!(!ReadBackRecord { one_in: 9, ..ReadBackRecord::default() }.to_string().contains("none was"));
        let uncertain = ReadBackRecord {
            noted: 7,
            one_in: 1,
            unjudged: 7,
            acknowledged: Some(9),
            ..ReadBackRecord::default()
        };
        assert_eq!(
            uncertain.to_string(),
            "0 written records were read back; 7 could hold anything, since writes of them got no answer"
        );
        assert!(!uncertain.is_sound());
        // A sample in which none of them was: 9 writes were acknowledged, and nothing is known of any.
        let missed = ReadBackRecord { one_in: 50_000, acknowledged: Some(9), ..ReadBackRecord::default() };
        assert_eq!(missed.to_string(), "0 written records were read back, a sample of one in 50000");
        assert!(!missed.is_sound());
        let failed = ReadBackRecord { acknowledged: Some(0), ..uncertain };
        assert!(failed.is_sound() && failed.to_string().contains("since none was acknowledged"), "{failed}");
        let more =
            ReadBackRecord { noted: 5, one_in: 1, checked: 5, left_out: 3, ..ReadBackRecord::default() };
        assert_eq!(
            more.to_string(),
            "5 written records were read back: their acknowledged writes are there; 3 writes of later records were not noted"
        );
    }
}
