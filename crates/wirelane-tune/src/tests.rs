//! Applying and restoring on a simulated device, with a crash at every step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use super::apply::{carry_out, undo};
use super::journal::{By, Identity, Journal, Owner};
use super::system::System;
use super::*;

/// A device whose settings are a table. Every read and every change is a crash point.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) values: RefCell<BTreeMap<Setting, String>>,
    pub(super) refuses: BTreeMap<Setting, i32>,
    /// Accepts no value while another setting has this one.
    pub(super) waits: Option<(Setting, Setting, &'static str)>,
    /// Accepts values without effect.
    pub(super) deaf: Option<Setting>,
}

impl System for Fake {
    fn get(&self, setting: &Setting) -> io::Result<String> {
        crash::point();
        self.values.borrow().get(setting).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn set(&self, setting: &Setting, value: &str) -> io::Result<()> {
        crash::point();
        if let Some(errno) = self.refuses.get(setting) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        if let Some((waits, other, value)) = &self.waits
            && waits == setting
            && self.values.borrow()[other] == *value
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // Drivers round values.
        let value = if *setting == Setting::RxRing && value == "4096" { "4032" } else { value };
        if self.deaf.as_ref() != Some(setting) {
            self.values.borrow_mut().insert(setting.clone(), value.to_owned());
        }
        crash::point();
        Ok(())
    }
}

fn gro() -> Setting {
    Setting::Offload { name: "rx-gro".into() }
}

fn device() -> Fake {
    let values = [
        (Setting::Channels, "rx 0 tx 0 combined 8"),
        (Setting::RxRing, "256"),
        (gro(), "on"),
        (Setting::Threaded, "0"),
        (Setting::IrqAffinity { irq: 64 }, "0-15"),
    ];
    Fake {
        values: RefCell::new(values.map(|(what, value)| (what, value.to_owned())).into()),
        ..Fake::default()
    }
}

fn changes() -> Vec<Change> {
    let change = |what, new: &str| Change { what, now: None, new: new.into(), reason: "a test".into() };
    vec![
        change(Setting::Channels, "rx 0 tx 0 combined 2"),
        change(Setting::RxRing, "4096"),
        change(gro(), "off"),
        change(Setting::Threaded, "1"),
        change(Setting::IrqAffinity { irq: 64 }, "2"),
    ]
}

pub(super) struct TestJournal {
    _folder: tempfile::TempDir,
    pub(super) path: PathBuf,
    pub(super) of: Identity,
}

impl TestJournal {
    pub(super) fn new() -> TestJournal {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let of = Identity { device: "eth1".into(), ifindex: 2, namespace: 1, boot: "b".into() };
        TestJournal { _folder: folder, path, of }
    }

    fn apply(&self, fake: &Fake, by: By) -> Vec<Step<Outcome>> {
        let mut journal = Journal::create(&self.path, &self.of).unwrap();
        let steps = carry_out(fake, &mut journal, by, &changes()).unwrap();
        journal.finish().unwrap();
        steps
    }

    pub(super) fn restore(&self, fake: &Fake, by: By) -> Vec<Step<Undoing>> {
        let Some(mut journal) = Journal::find(&self.path, &self.of).unwrap() else { return Vec::new() };
        let steps = undo(fake, &mut journal, by).unwrap();
        journal.finish().unwrap();
        steps
    }
}

/// Runs `work`, with a crash after this number of points. True: it finished.
pub(super) fn dies_after(points: u32, work: impl FnOnce()) -> bool {
    crash::after(Some(points));
    let ended = catch_unwind(AssertUnwindSafe(work));
    crash::after(None);
    match ended {
        Ok(()) => true,
        Err(panic) => {
            assert_eq!(
                panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str)),
                Some(crash::DEATH)
            );
            false
        }
    }
}

#[test]
fn what_was_applied_is_restored_once() {
    let (place, fake) = (TestJournal::new(), device());
    let before = fake.values.borrow().clone();
    let steps = place.apply(&fake, By::Apply);
    assert!(steps.iter().all(|step| matches!(step.outcome, Outcome::Changed { .. })), "{steps:?}");
    assert_eq!(fake.values.borrow()[&Setting::RxRing], "4032", "as the driver has it");
    // Applying again changes nothing, and the journal still has the values before.
    let again = place.apply(&fake, By::Apply);
    let same = again.iter().filter(|step| step.outcome == Outcome::AsItWas).count();
    assert_eq!(same, 4, "{again:?}");
    let restored = place.restore(&fake, By::Apply);
    assert_eq!(*fake.values.borrow(), before, "{restored:?}");
    assert!(!place.path.exists());
    assert!(place.restore(&fake, By::Apply).is_empty());
}

#[test]
fn death_at_every_step_of_applying_is_healed() {
    let before = device().values.borrow().clone();
    let mut deaths = 0;
    for points in 0.. {
        let (place, fake) = (TestJournal::new(), device());
        if dies_after(points, || drop(place.apply(&fake, By::Apply))) {
            break;
        }
        deaths += 1;
        let steps = place.restore(&fake, By::Apply);
        // A value that the driver rounded before it was recorded has no known owner.
        let unsure = steps.iter().any(|step| matches!(step.outcome, Undoing::Foreign { .. }));
        let mut expected = before.clone();
        if unsure {
            expected.insert(Setting::RxRing, "4032".into());
        }
        assert_eq!(*fake.values.borrow(), expected, "death at point {points}: {steps:?}");
        // A crash before the first line was written leaves an empty file.
        let nothing = Journal::find(&place.path, &place.of).unwrap().is_none();
        assert!(nothing, "death at point {points}");
    }
    assert!(deaths > 40, "only {deaths} points");
}

#[test]
fn death_at_every_step_of_restoring_is_healed() {
    let before = device().values.borrow().clone();
    for points in 0.. {
        let (place, fake) = (TestJournal::new(), device());
        place.apply(&fake, By::Apply);
        if dies_after(points, || drop(place.restore(&fake, By::Apply))) {
            assert!(points > 20, "only {points} points");
            break;
        }
        place.restore(&fake, By::Apply);
        assert_eq!(*fake.values.borrow(), before, "death at point {points}");
        assert!(!place.path.exists(), "death at point {points}");
    }
}

#[test]
fn what_others_changed_since_is_left_alone() {
    let (place, fake) = (TestJournal::new(), device());
    place.apply(&fake, By::Apply);
    fake.values.borrow_mut().insert(Setting::Threaded, "2".into());
    fake.values.borrow_mut().insert(gro(), "on".into());
    fake.values.borrow_mut().remove(&Setting::IrqAffinity { irq: 64 });
    let steps = place.restore(&fake, By::Apply);
    let of = |what: Setting| steps.iter().find(|step| step.what == what).unwrap().outcome.clone();
    assert_eq!(of(Setting::Threaded), Undoing::Foreign { now: "2".into() });
    assert_eq!(of(gro()), Undoing::AsItWas);
    assert_eq!(of(Setting::IrqAffinity { irq: 64 }), Undoing::Gone);
    assert_eq!(of(Setting::Channels), Undoing::Restored);
    assert_eq!(fake.values.borrow()[&Setting::Threaded], "2");
}

#[test]
fn one_refusal_does_not_stop_the_others() {
    let (place, mut fake) = (TestJournal::new(), device());
    fake.refuses = BTreeMap::from([
        (Setting::Channels, libc::EPERM),
        (Setting::IrqAffinity { irq: 64 }, libc::EIO),
        (Setting::Threaded, libc::EROFS),
    ]);
    fake.deaf = Some(gro());
    let steps = place.apply(&fake, By::Apply);
    let refusals: Vec<String> = steps
        .iter()
        .filter_map(|step| match &step.outcome {
            Outcome::Refused { reason } => Some(reason.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(refusals.len(), 4, "{steps:?}");
    for (reason, part) in
        refusals.iter().zip(["CAP_NET_ADMIN", "left it at on", "read-only", "manages this interrupt"])
    {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert_eq!(fake.values.borrow()[&Setting::RxRing], "4032");

    // A change that cannot be undone stays in the journal until it can.
    fake.refuses = BTreeMap::from([(Setting::RxRing, libc::EBUSY)]);
    let steps = place.restore(&fake, By::Apply);
    assert!(matches!(&steps[..], [Step { outcome: Undoing::Refused { .. }, .. }]), "{steps:?}");
    assert!(place.path.exists());
    fake.refuses.clear();
    place.restore(&fake, By::Apply);
    assert_eq!(fake.values.borrow()[&Setting::RxRing], "256");
    assert!(!place.path.exists());
}

#[test]
fn captures_share_and_the_last_one_puts_back() {
    let (place, fake) = (TestJournal::new(), device());
    let before = fake.values.borrow().clone();
    let own = Owner::this("threaded");
    let dead = Owner { start: own.start + 1, ..own.clone() };
    assert!(own.lives() && !dead.lives());
    let mut journal = Journal::create(&place.path, &place.of).unwrap();
    // Two captures of this process, and a killed one.
    for owner in [&own, &dead, &own] {
        journal.hold(owner).unwrap();
    }
    carry_out(&fake, &mut journal, By::Capture, &changes()).unwrap();
    drop(journal);

    let held = place.restore(&fake, By::Apply);
    assert!(held.iter().all(|step| step.outcome == Undoing::Held { pid: own.pid }), "{held:?}");
    for left in [1, 0] {
        let mut journal = Journal::find(&place.path, &place.of).unwrap().unwrap();
        journal.release(&own).unwrap();
        undo(&fake, &mut journal, By::Capture).unwrap();
        assert_eq!(journal.owners.len(), left);
        assert_eq!(*fake.values.borrow() == before, left == 0);
        journal.finish().unwrap();
    }
    assert!(!place.path.exists());
}

#[test]
fn what_is_applied_outlives_the_capture_that_had_it() {
    let (place, fake) = (TestJournal::new(), device());
    let before = fake.values.borrow().clone();
    let own = Owner::this("threaded");
    let mut journal = Journal::create(&place.path, &place.of).unwrap();
    journal.hold(&own).unwrap();
    let threaded: Vec<Change> = changes().into_iter().filter(|one| one.what == Setting::Threaded).collect();
    carry_out(&fake, &mut journal, By::Capture, &threaded).unwrap();
    carry_out(&fake, &mut journal, By::Apply, &threaded).unwrap();
    journal.release(&own).unwrap();
    undo(&fake, &mut journal, By::Capture).unwrap();
    assert_eq!(fake.values.borrow()[&Setting::Threaded], "1");
    journal.finish().unwrap();
    place.restore(&fake, By::Apply);
    assert_eq!(*fake.values.borrow(), before);
}

#[test]
fn a_journal_that_is_none_is_not_touched() {
    let place = TestJournal::new();
    std::fs::write(&place.path, "my diary\n").unwrap();
    let error = Journal::create(&place.path, &place.of).unwrap_err().to_string();
    assert!(error.contains("not a journal of wirelane tune"), "{error}");
    assert_eq!(std::fs::read_to_string(&place.path).unwrap(), "my diary\n");

    // The journal of another device.
    std::fs::remove_file(&place.path).unwrap();
    place.apply(&device(), By::Apply);
    let other = Identity { ifindex: 3, device: "eth2".into(), ..place.of.clone() };
    let error = Journal::find(&place.path, &other).unwrap_err().to_string();
    assert!(error.contains("the journal of eth1 (index 2), not of eth2"), "{error}");

    // After a restart all settings have their defaults, and nothing has to be undone.
    let later = Identity { boot: "c".into(), ..place.of.clone() };
    assert!(Journal::find(&place.path, &later).unwrap().is_none());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// An RSS table that names four queues is refused while there are only two.
#[test]
fn what_waits_for_another_setting_is_put_back_after_it() {
    let (place, mut fake) = (TestJournal::new(), device());
    let before = fake.values.borrow().clone();
    place.apply(&fake, By::Apply);
    fake.waits = Some((gro(), Setting::Channels, "rx 0 tx 0 combined 2"));
    let steps = place.restore(&fake, By::Apply);
    assert!(steps.iter().all(|step| step.outcome == Undoing::Restored), "{steps:?}");
    assert_eq!(*fake.values.borrow(), before);
    assert!(!place.path.exists());
}
