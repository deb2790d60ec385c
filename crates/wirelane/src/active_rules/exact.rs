//! Exact-match rules of a capture: inserts them into the tables of all its devices, removes them, and sweeps expired
//! ones.

use wirelane_bpf::rules::{ExactKey, ExactValue};

use super::target::{InsertOutcome, Page, Target};
use super::{ActiveRuleset, State, entry, refused};
use crate::error::{Error, Result};
use wirelane_rules::{ExactRule, RuleSet};

impl ActiveRuleset {
    /// Inserts exact-match rules into the tables of all devices, or into none.
    pub(super) fn put_all(&self, state: &mut State, rules: &[ExactRule], epoch: u32) -> Result<u64> {
        for (done, rule) in rules.iter().enumerate() {
            let key = entry::key(&rule.fields, epoch);
            for (at, target) in self.targets.iter().enumerate() {
                if let Err(e) = put(state, target.as_ref(), &key, rule) {
                    let _ = self.targets[..at].iter().try_for_each(|target| target.take(&key).map(|_| ()));
                    self.take_back(&rules[..done], epoch);
                    return Err(e);
                }
            }
        }
        Ok(rules.len() as u64)
    }

    /// Undoes [`ActiveRuleset::put_all`]. No packet has been evaluated by these rules, or none is to be.
    pub(super) fn take_back(&self, rules: &[ExactRule], epoch: u32) {
        for rule in rules {
            let key = entry::key(&rule.fields, epoch);
            for target in &self.targets {
                if let Err(e) = target.take(&key) {
                    tracing::warn!("{}: taking back exact-match rule {}: {e}", target.device(), rule.id);
                }
            }
        }
    }

    /// Removes all exact-match rules for which `ends` is true; returns their number.
    pub(super) fn purge(
        &self,
        state: &mut State,
        ends: impl Fn(&ExactKey, &ExactValue) -> bool,
    ) -> Result<u64> {
        let mut removed = 0;
        // The last target first: of a rule for both directions of a device only the last removal counts.
        for (at, target) in self.targets.iter().enumerate().rev() {
            purge(
                state,
                target.as_ref(),
                |key, value, _| ends(key, value),
                |key| {
                    removed += u64::from(self.is_last(at, key)?);
                    Ok(())
                },
                |state| self.tell_gone(state),
            )?;
        }
        Ok(removed)
    }

    /// Whether no earlier target of the same device has a rule that was removed from this one.
    pub(super) fn is_last(&self, at: usize, key: &ExactKey) -> Result<bool> {
        for peer in self.peers(at, 0..at) {
            if peer.get(key)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes expired rules from the next page of exact-match rules. Returns whether there are more pages in this
    /// round.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn sweep(&self) -> Result<bool> {
        let mut state = self.lock();
        let (at, from) = state.swept;
        let Some(target) = self.targets.get(at).filter(|_| state.ages) else {
            state.swept = (0, None);
            return Ok(false);
        };
        // A page that cannot be read now is left for the next round.
        state.swept = (at + 1, None);
        let page = target.page(from)?;
        if page.next.is_some() {
            state.swept = (at, page.next);
        }
        let epoch = state.epoch;
        let ends = |key: &ExactKey, value: &ExactValue, now| {
            entry::epoch_of(key) != epoch || entry::has_expired(value, now)
        };
        let swept = sweep_page(&mut state, target.as_ref(), &page, ends, &mut |_| Ok(()));
        self.tell_gone(&mut state);
        swept.map(|()| true)
    }
}

/// Inserts a rule into the table of a device. An entry that a packet has made is replaced.
fn put(state: &mut State, target: &dyn Target, key: &ExactKey, rule: &ExactRule) -> Result<()> {
    let (_, value) = rule.entry(target.now_ns(), target.egress_devices());
    let mut swept = false;
    if let Some(back) = entry::turned(key) {
        make_way(state, target, &back, rule.id)?;
    }
    loop {
        match target.put(key, &value)? {
            InsertOutcome::Done => return Ok(()),
            InsertOutcome::Exists => make_way(state, target, key, rule.id)?,
            InsertOutcome::Full if !swept => {
                swept = true;
                purge(state, target, |_, value, now| entry::has_expired(value, now), |_| Ok(()), |_| {})?;
            }
            InsertOutcome::Full => {
                let room = target.room().exact;
                return Err(Error::BadOption {
                    option: "--rules-capacity",
                    reason: format!(
                        "{} has room for {room} exact-match rules, which is full (replacing a set takes room for the old and \
                         the new one): start the capture with --rules-capacity exact={}",
                        target.device(),
                        2 * room
                    ),
                });
            }
        }
    }
}

/// Frees a key for rule `id`: removes an entry that a packet made or that has expired; any other is an error.
fn make_way(state: &mut State, target: &dyn Target, key: &ExactKey, id: u32) -> Result<()> {
    match target.get(key)? {
        None => Ok(()),
        Some(other) if entry::is_made(&other) || entry::has_expired(&other, target.now_ns()) => {
            if let Some(gone) = target.take(key)? {
                state.has_gone(key, &gone, target.now_ns());
            }
            Ok(())
        }
        Some(other) => {
            Err(refused(format!("rule {id}: exact-match rule {} is for exactly these packets", other.id)))
        }
    }
}

/// Removes all exact-match rules of a target for which `ends` is true; calls `gone` for each, and `page_done` after each
/// page.
fn purge(
    state: &mut State,
    target: &dyn Target,
    ends: impl Fn(&ExactKey, &ExactValue, u64) -> bool,
    mut gone: impl FnMut(&ExactKey) -> Result<()>,
    page_done: impl Fn(&mut State),
) -> Result<()> {
    let mut from = None;
    loop {
        let page = target.page(from)?;
        let swept = sweep_page(state, target, &page, &ends, &mut gone);
        page_done(state);
        swept?;
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// Removes the rules of a page for which `ends` is true, and calls `gone` for each.
fn sweep_page(
    state: &mut State,
    target: &dyn Target,
    page: &Page,
    ends: impl Fn(&ExactKey, &ExactValue, u64) -> bool,
    gone: &mut dyn FnMut(&ExactKey) -> Result<()>,
) -> Result<()> {
    let now = target.now_ns();
    for (key, value) in page.rules.iter().filter(|(key, value)| ends(key, value, now)) {
        let Some(taken) = target.take(key)? else { continue };
        // A packet may have remade the entry since the page was read.
        let anew = taken.made_ns != value.made_ns && !ends(key, &taken, target.now_ns());
        if anew && target.put(key, &taken)? == InsertOutcome::Done {
            continue;
        }
        state.has_gone(key, &taken, target.now_ns());
        gone(key)?;
    }
    Ok(())
}

/// Whether rules of a set expire, or make rules that expire.
pub(super) fn age(rules: &RuleSet) -> bool {
    rules.exact.iter().any(|rule| rule.idle_s != 0 || rule.hard_s != 0)
        || rules.rules.iter().any(|rule| rule.insert.is_some())
}
