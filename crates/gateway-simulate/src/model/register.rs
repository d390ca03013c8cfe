//! One key's possible versions, by its requests and answers.

use std::time::Duration;

/// Events are numbered as the clients see them, so that of two it is known which came first.
pub(super) type EventNumber = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    /// Not answered, or by an answer that leaves it open.
    Unknown,
    Done,
    NotDone,
}

/// A request to change a key.
#[derive(Clone, Debug)]
pub(super) struct WriteAttempt {
    /// The key's possible versions afterwards; `None` is nothing. Empty as long as nobody knows.
    pub(super) outcomes: Vec<Option<usize>>,
    /// Where it reads what it writes, and whether it gives it other headers.
    pub(super) copy_of: Option<(String, Option<String>)>,
    pub(super) begun: EventNumber,
    /// It has no effect after that.
    pub(super) ended: Option<EventNumber>,
    /// When it counts as ended, at the latest.
    pub(super) ends_at: Option<Duration>,
    pub(super) fate: WriteFate,
    /// A read that began later can't find it.
    pub(super) gone_since: Option<EventNumber>,
    pub(super) gateway: usize,
}

/// All that was asked of a key.
#[derive(Clone, Debug)]
pub(super) struct KeyRegister {
    pub(super) writes: Vec<WriteAttempt>,
    /// The write that a read has found, and when that read had ended.
    seen: Option<(usize, EventNumber)>,
}

impl KeyRegister {
    pub(super) fn new() -> KeyRegister {
        let initial = WriteAttempt {
            outcomes: vec![None],
            copy_of: None,
            begun: 0,
            ended: Some(0),
            ends_at: None,
            fate: WriteFate::Done,
            gone_since: None,
            gateway: 0,
        };
        KeyRegister { writes: vec![initial], seen: None }
    }

    /// Ends what is open by its time. Returns whether something still is.
    pub(super) fn pass(&mut self, now: Duration, moment: EventNumber) -> bool {
        let mut is_open = false;
        for write in &mut self.writes {
            match write.ends_at.filter(|_| write.ended.is_none()) {
                Some(ends_at) if ends_at <= now => write.ended = Some(moment),
                Some(_) => is_open = true,
                None => {}
            }
        }
        is_open
    }

    /// Writes that a read between two moments may find.
    pub(super) fn possible(&self, start: EventNumber, end: EventNumber) -> Vec<usize> {
        let is_over = |write: &WriteAttempt| {
            // Another write began after this one had ended, and had ended before the read began.
            write.gone_since.is_some_and(|overwritten| overwritten <= start)
                || write.ended.is_some_and(|ended| {
                    self.writes.iter().any(|other| {
                        other.fate == WriteFate::Done
                            && other.begun >= ended
                            && other.begun > write.begun
                            && other.ended.is_some_and(|other_ended| other_ended <= start)
                    })
                })
        };
        let is_possible =
            |write: &WriteAttempt| write.fate != WriteFate::NotDone && write.begun <= end && !is_over(write);
        self.writes
            .iter()
            .enumerate()
            .filter(|(_, write)| is_possible(write))
            .map(|(index, _)| index)
            .collect()
    }

    /// A read has found what this write alone can have written.
    pub(super) fn see(&mut self, index: usize, start: EventNumber, end: EventNumber) {
        let write = &mut self.writes[index];
        write.fate = WriteFate::Done;
        write.ended = Some(write.ended.map_or(end, |ended| ended.min(end)));
        match self.seen {
            Some((former, moment)) if former != index && moment <= start => {
                let former = &mut self.writes[former];
                former.gone_since = Some(former.gone_since.map_or(end, |overwritten| overwritten.min(end)));
            }
            _ => {}
        }
        if self.seen.is_none_or(|(_, moment)| moment <= start) {
            self.seen = Some((index, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(
        register: &mut KeyRegister,
        begun: EventNumber,
        ended: Option<EventNumber>,
        fate: WriteFate,
    ) -> usize {
        register.writes.push(WriteAttempt {
            outcomes: vec![Some(register.writes.len())],
            copy_of: None,
            begun,
            ended,
            ends_at: None,
            fate,
            gone_since: None,
            gateway: 0,
        });
        register.writes.len() - 1
    }

    #[test]
    fn version_overwritten_before_read_is_impossible() {
        let mut register = KeyRegister::new();
        let first = write(&mut register, 1, Some(2), WriteFate::Done);
        let second = write(&mut register, 3, Some(5), WriteFate::Done);
        assert_eq!(register.possible(2, 2), [first]);
        // While the second is in flight, both may be found.
        assert_eq!(register.possible(4, 4), [first, second]);
        assert_eq!(register.possible(4, 9), [first, second]);
        assert_eq!(register.possible(5, 9), [second]);
    }

    #[test]
    fn unanswered_write_may_be_present_or_absent() {
        let mut register = KeyRegister::new();
        let first = write(&mut register, 1, Some(2), WriteFate::Done);
        let unknown = write(&mut register, 3, None, WriteFate::Unknown);
        let third = write(&mut register, 5, Some(6), WriteFate::Done);
        assert_eq!(register.possible(4, 4), [first, unknown]);
        // It may still come.
        assert_eq!(register.possible(7, 7), [unknown, third]);
        register.writes[unknown].ended = Some(5);
        assert_eq!(register.possible(7, 7), [third]);
        register.writes[unknown].fate = WriteFate::NotDone;
        assert_eq!(register.possible(4, 4), [first]);
    }

    #[test]
    fn later_read_never_returns_older_version() {
        let mut register = KeyRegister::new();
        let first = write(&mut register, 1, Some(2), WriteFate::Done);
        let unknown = write(&mut register, 3, None, WriteFate::Unknown);
        register.see(first, 3, 4);
        register.see(unknown, 5, 6);
        assert_eq!(register.possible(7, 8), [unknown]);
    }

    #[test]
    fn concurrent_writes_are_ordered_by_first_read() {
        let mut register = KeyRegister::new();
        let a = write(&mut register, 1, Some(5), WriteFate::Done);
        let b = write(&mut register, 2, Some(4), WriteFate::Done);
        assert_eq!(register.possible(6, 7), [a, b]);
        register.see(a, 6, 7);
        assert_eq!(register.possible(8, 9), [a, b]);
        register.see(b, 8, 9);
        assert_eq!(register.possible(10, 11), [b]);
    }

    #[test]
    fn open_write_ends_at_its_deadline() {
        let mut register = KeyRegister::new();
        let unknown = write(&mut register, 1, None, WriteFate::Unknown);
        register.writes[unknown].ends_at = Some(Duration::from_secs(5));
        assert!(register.pass(Duration::from_secs(4), 2));
        assert_eq!(register.writes[unknown].ended, None);
        assert!(!register.pass(Duration::from_secs(5), 3));
        assert_eq!(register.writes[unknown].ended, Some(3));
    }
}
