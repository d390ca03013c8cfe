//! What one key may have, by what was asked for and what was answered.

use std::time::Duration;

/// Events are numbered as the clients see them, so that of two it is known which came first.
pub(super) type Moment = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not answered, or by an answer that leaves it open.
    Unknown,
    Done,
    NotDone,
}

/// A request to change a key.
#[derive(Clone, Debug)]
pub(super) struct Write {
    /// What the key has afterwards: one of these, where `None` is nothing. Empty as long as nobody knows.
    pub(super) outcomes: Vec<Option<usize>>,
    /// Where it reads what it writes, and whether it gives it other headers.
    pub(super) copy_of: Option<(String, Option<String>)>,
    pub(super) begun: Moment,
    /// It has no effect after that.
    pub(super) ended: Option<Moment>,
    /// When it counts as ended, at the latest.
    pub(super) ends_at: Option<Duration>,
    pub(super) fate: Fate,
    /// A read that began later can't find it.
    pub(super) gone_since: Option<Moment>,
    pub(super) gateway: usize,
}

/// All that was asked of a key.
#[derive(Clone, Debug)]
pub(super) struct Register {
    pub(super) writes: Vec<Write>,
    /// The write that a read has found, and when that read had ended.
    seen: Option<(usize, Moment)>,
}

impl Register {
    pub(super) fn new() -> Register {
        let nothing = Write {
            outcomes: vec![None],
            copy_of: None,
            begun: 0,
            ended: Some(0),
            ends_at: None,
            fate: Fate::Done,
            gone_since: None,
            gateway: 0,
        };
        Register { writes: vec![nothing], seen: None }
    }

    /// Ends what is open by its time. Returns whether something still is.
    pub(super) fn pass(&mut self, now: Duration, moment: Moment) -> bool {
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
    pub(super) fn possible(&self, since: Moment, until: Moment) -> Vec<usize> {
        let is_over = |write: &Write| {
            // Another write began after this one had ended, and had ended before the read began.
            write.gone_since.is_some_and(|gone| gone <= since)
                || write.ended.is_some_and(|ended| {
                    self.writes.iter().any(|other| {
                        other.fate == Fate::Done
                            && other.begun >= ended
                            && other.begun > write.begun
                            && other.ended.is_some_and(|other_ended| other_ended <= since)
                    })
                })
        };
        let may = |write: &Write| write.fate != Fate::NotDone && write.begun <= until && !is_over(write);
        self.writes.iter().enumerate().filter(|(_, write)| may(write)).map(|(at, _)| at).collect()
    }

    /// A read has found what this write alone can have written.
    pub(super) fn see(&mut self, at: usize, since: Moment, until: Moment) {
        let write = &mut self.writes[at];
        write.fate = Fate::Done;
        write.ended = Some(write.ended.map_or(until, |ended| ended.min(until)));
        match self.seen {
            Some((former, moment)) if former != at && moment <= since => {
                let former = &mut self.writes[former];
                former.gone_since = Some(former.gone_since.map_or(until, |gone| gone.min(until)));
            }
            _ => {}
        }
        if self.seen.is_none_or(|(_, moment)| moment <= since) {
            self.seen = Some((at, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(register: &mut Register, begun: Moment, ended: Option<Moment>, fate: Fate) -> usize {
        register.writes.push(Write {
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
    fn what_was_overwritten_before_a_read_began_is_gone() {
        let mut register = Register::new();
        let first = write(&mut register, 1, Some(2), Fate::Done);
        let second = write(&mut register, 3, Some(5), Fate::Done);
        assert_eq!(register.possible(2, 2), [first]);
        // While the second is under way, both may be found.
        assert_eq!(register.possible(4, 4), [first, second]);
        assert_eq!(register.possible(4, 9), [first, second]);
        assert_eq!(register.possible(5, 9), [second]);
    }

    #[test]
    fn an_unanswered_write_may_be_there_and_may_not() {
        let mut register = Register::new();
        let first = write(&mut register, 1, Some(2), Fate::Done);
        let unknown = write(&mut register, 3, None, Fate::Unknown);
        let third = write(&mut register, 5, Some(6), Fate::Done);
        assert_eq!(register.possible(4, 4), [first, unknown]);
        // It may still come.
        assert_eq!(register.possible(7, 7), [unknown, third]);
        register.writes[unknown].ended = Some(5);
        assert_eq!(register.possible(7, 7), [third]);
        register.writes[unknown].fate = Fate::NotDone;
        assert_eq!(register.possible(4, 4), [first]);
    }

    #[test]
    fn nothing_goes_back_behind_what_was_seen() {
        let mut register = Register::new();
        let first = write(&mut register, 1, Some(2), Fate::Done);
        let unknown = write(&mut register, 3, None, Fate::Unknown);
        register.see(first, 3, 4);
        register.see(unknown, 5, 6);
        assert_eq!(register.possible(7, 8), [unknown]);
    }

    #[test]
    fn of_two_at_once_either_may_be_last_until_one_is_seen_after_the_other() {
        let mut register = Register::new();
        let a = write(&mut register, 1, Some(5), Fate::Done);
        let b = write(&mut register, 2, Some(4), Fate::Done);
        assert_eq!(register.possible(6, 7), [a, b]);
        register.see(a, 6, 7);
        assert_eq!(register.possible(8, 9), [a, b]);
        register.see(b, 8, 9);
        assert_eq!(register.possible(10, 11), [b]);
    }

    #[test]
    fn what_is_open_ends_by_its_time() {
        let mut register = Register::new();
        let unknown = write(&mut register, 1, None, Fate::Unknown);
        register.writes[unknown].ends_at = Some(Duration::from_secs(5));
        assert!(register.pass(Duration::from_secs(4), 2));
        assert_eq!(register.writes[unknown].ended, None);
        assert!(!register.pass(Duration::from_secs(5), 3));
        assert_eq!(register.writes[unknown].ended, Some(3));
    }
}
