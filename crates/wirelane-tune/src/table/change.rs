//! A setting that is changed repeatedly. The journal is always written first: at any moment it holds the value from
//! before the first change, and it does not grow.

use std::io;

use crate::Result;
use crate::journal::{By, Journal};
use crate::setting::Setting;
use crate::system::System;

/// State of a setting that is changed repeatedly.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) what: Setting,
    /// The value to restore at the end.
    pub(super) original: String,
    /// The value after the last change.
    pub(super) now: String,
    /// The journal's entry for the last change; `None` before the first one.
    pub(super) change: Option<u32>,
}

/// Result of one more change.
#[derive(Debug)]
pub(super) enum Advance {
    /// The change was made.
    Made,
    /// The change was not made: another process has changed the setting.
    Foreign,
    /// The change was not made: the kernel's error, or `None` if the driver gave no reason.
    Refused(Option<io::Error>),
}

impl Standing {
    /// Changes the setting once more.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(super) fn advance(
        &mut self,
        system: &dyn System,
        journal: &mut Journal,
        new: &str,
    ) -> Result<Advance> {
        match system.get(&self.what) {
            Ok(found) if found != self.now => return Ok(Advance::Foreign),
            Ok(_) => {}
            Err(error) => return Ok(Advance::Refused(Some(error))),
        }
        // `wirelane tune apply` adopts the changes that it finds: then this value is the one to restore.
        let last = self.change.and_then(|change| journal.entries.iter().find(|entry| entry.change == change));
        if last.is_some_and(|entry| entry.by == By::Apply) {
            (self.original, self.change) = (self.now.clone(), None);
        }
        // Between these two lines both changes are in the journal. `apply::undo` takes into account that the earlier
        // one may be the one in effect.
        let change = journal.intend(By::Capture, &self.what, &self.original, new)?;
        let set = system.set(&self.what, new);
        let found = system.get(&self.what).unwrap_or_else(|_| new.to_owned());
        if found == self.now {
            journal.undone(change)?;
            return Ok(Advance::Refused(set.err()));
        }
        // Also if the driver returned an error but changed the value.
        journal.done(change, &found)?;
        if let Some(last) = self.change.replace(change) {
            journal.undone(last)?;
        }
        let whole = found == new;
        self.now = found;
        Ok(match set {
            Ok(()) if whole => Advance::Made,
            Ok(()) => Advance::Refused(None),
            Err(error) => Advance::Refused(Some(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Fake, TestJournal, dies_after};

    const VALUES: [&str; 4] = ["even 2", "0,1,1,1", "1,1,1,0", "even 2"];

    fn device() -> Fake {
        let fake = Fake::default();
        fake.values.borrow_mut().insert(Setting::RssTable, "even 4".into());
        fake
    }

    fn standing() -> Standing {
        Standing { what: Setting::RssTable, original: "even 4".into(), now: "even 4".into(), change: None }
    }

    fn advance(standing: &mut Standing, place: &TestJournal, fake: &Fake, new: &str) -> Advance {
        let mut journal = Journal::create(&place.path, &place.of).unwrap();
        standing.advance(fake, &mut journal, new).unwrap()
    }

    fn value(fake: &Fake) -> String {
        fake.values.borrow()[&Setting::RssTable].clone()
    }

    #[test]
    fn the_first_value_comes_back_wherever_it_dies() {
        for points in 0.. {
            let (place, fake) = (TestJournal::new(), device());
            let ended = dies_after(points, || {
                let mut standing = standing();
                for new in VALUES {
                    assert!(matches!(advance(&mut standing, &place, &fake, new), Advance::Made));
                }
            });
            place.restore(&fake, By::Capture);
            assert_eq!(value(&fake), "even 4", "after {points} points");
            let journal = Journal::create(&place.path, &place.of).unwrap();
            assert!(journal.entries.is_empty(), "after {points} points");
            if ended {
                assert!(points > 20, "it had {points} points only");
                return;
            }
        }
    }

    #[test]
    fn the_journal_holds_one_change() {
        let (place, fake, mut standing) = (TestJournal::new(), device(), standing());
        for new in VALUES {
            advance(&mut standing, &place, &fake, new);
            let journal = Journal::create(&place.path, &place.of).unwrap();
            assert_eq!(journal.entries.len(), 1);
            assert_eq!((&*journal.entries[0].old, &*journal.entries[0].new), ("even 4", new));
        }
    }

    #[test]
    fn what_somebody_else_has_changed_is_left_alone() {
        let (place, fake, mut standing) = (TestJournal::new(), device(), standing());
        advance(&mut standing, &place, &fake, VALUES[0]);
        fake.values.borrow_mut().insert(Setting::RssTable, "3,3,3,3".into());
        assert!(matches!(advance(&mut standing, &place, &fake, VALUES[1]), Advance::Foreign));
        place.restore(&fake, By::Capture);
        assert_eq!(value(&fake), "3,3,3,3");
    }

    #[test]
    fn a_refusal_leaves_nothing_in_the_journal() {
        let (place, mut standing) = (TestJournal::new(), standing());
        let fake = Fake { refuses: [(Setting::RssTable, libc::EOPNOTSUPP)].into(), ..device() };
        let Advance::Refused(Some(error)) = advance(&mut standing, &place, &fake, VALUES[0]) else {
            panic!("it was not refused");
        };
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        let deaf = Fake { deaf: Some(Setting::RssTable), ..device() };
        assert!(matches!(advance(&mut standing, &place, &deaf, VALUES[0]), Advance::Refused(None)));
        let journal = Journal::create(&place.path, &place.of).unwrap();
        assert!(journal.entries.is_empty());
    }

    #[test]
    fn what_apply_has_taken_over_stays() {
        let (place, fake, mut standing) = (TestJournal::new(), device(), standing());
        advance(&mut standing, &place, &fake, VALUES[0]);
        let mut journal = Journal::create(&place.path, &place.of).unwrap();
        journal.adopt(standing.change.unwrap()).unwrap();
        drop(journal);
        advance(&mut standing, &place, &fake, VALUES[1]);
        place.restore(&fake, By::Capture);
        assert_eq!(value(&fake), VALUES[0]);
        place.restore(&fake, By::Apply);
        assert_eq!(value(&fake), "even 4");
    }
}
