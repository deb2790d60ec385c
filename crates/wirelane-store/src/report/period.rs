//! Time steps of a report.

/// Maximum points of a line, if no step is requested.
const MOST_POINTS: i64 = 240;

/// Time span of a report, and its division into steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Period {
    from_ns: i64,
    to_ns: i64,
    /// Length of a step in seconds.
    pub(super) step_s: i64,
}

impl Period {
    /// `asked_s`: the requested length of a step in seconds. `longest_ns`: the longest measured interval.
    pub(super) fn new(from_ns: i64, to_ns: i64, asked_s: Option<u64>, longest_ns: i64) -> Period {
        let seconds = (to_ns - from_ns) / 1_000_000_000;
        let steps = [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800];
        let fits = |step: &i64| seconds / step <= MOST_POINTS;
        let chosen = steps.into_iter().find(fits).unwrap_or(2_592_000);
        let asked = asked_s.map(|step| i64::try_from(step).unwrap_or(i64::MAX).clamp(1, 1 << 32));
        // An interval longer than a step would leave holes.
        let least = longest_ns.div_euclid(1_000_000_000) + i64::from(longest_ns % 1_000_000_000 > 0);
        Period { from_ns, to_ns, step_s: asked.unwrap_or(chosen).max(least).max(1) }
    }

    /// Length of a step in nanoseconds.
    pub(super) fn step_ns(&self) -> i64 {
        self.step_s.saturating_mul(1_000_000_000)
    }

    /// Start of a step, and the seconds of it within the time span: for values measured inside the step.
    pub(super) fn step(&self, number: i64) -> (i64, f64) {
        let start = number.saturating_mul(self.step_ns());
        let end = start.saturating_add(self.step_ns());
        (start, seconds(end.min(self.to_ns).saturating_sub(start.max(self.from_ns))))
    }

    /// Start of a step, and its full length in seconds: for values reported at their end, which may have begun before
    /// the step.
    pub(super) fn whole_step(&self, number: i64) -> (i64, f64) {
        let length = self.to_ns.saturating_sub(self.from_ns);
        (number.saturating_mul(self.step_ns()), seconds(self.step_ns().min(length)))
    }
}

/// Nanoseconds in seconds, at least 1 ms, because rates are divided by it.
fn seconds(ns: i64) -> f64 {
    ns.max(1_000_000) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_as_long_as_intervals_and_few_enough_for_a_chart() {
        let s = 1_000_000_000;
        assert_eq!(Period::new(0, 10 * s, None, s).step_s, 1);
        assert_eq!(Period::new(0, 86_400 * s, None, s).step_s, 600);
        assert_eq!(Period::new(0, 10 * s, None, 60 * s + 1).step_s, 61);
        assert_eq!(Period::new(0, 10 * s, Some(5), s).step_s, 5);
        let period = Period::new(3 * s / 2, 7 * s, Some(5), s);
        assert_eq!(period.step(0), (0, 3.5), "the time begins within the step");
        assert_eq!(period.step(1), (5 * s, 2.0), "and ends within the last");
        assert_eq!(period.whole_step(1), (5 * s, 5.0));
        assert_eq!(
            Period::new(s, 3 * s, Some(5), s).whole_step(0),
            (0, 2.0),
            "the time is shorter than a step"
        );
    }
}
