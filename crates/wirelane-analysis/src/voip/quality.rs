//! Call quality by the E-model (ITU-T G.107, narrow band) in the simplified form of its planning use:
//!
//! ```text
//! R = 93.2 - Id - Ie,eff
//! Id = 0.024 d + 0.11 (d - 177.3) where d > 177.3 (ms, mouth to ear)
//! Ie,eff = Ie + (95 - Ie) Ppl / (Ppl / BurstR + Bpl)
//! MOS = 1 + 0.035 R + R (R - 60) (100 - R) 7e-6 (G.107, Annex B)
//! ```
//!
//! Values that a capture point cannot know are assumed, in the same way for all calls: the delay is half of the round
//! trip, if RTCP reported it, plus a jitter buffer of twice the jitter; packets that are too late for such a buffer do
//! not count as lost. BurstR is the mean length of loss bursts relative to that of random loss, and at least 1. Codecs
//! without published Ie and Bpl have neither R nor MOS.

/// Description of the model in outputs beside R and MOS.
pub const MODEL: &str = "G.107 simplified: R = 93.2 - Id - Ie,eff; delay = round trip / 2 + 2 x jitter";

/// Impairment factors of a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Equipment impairment factor (G.113).
    pub ie: f64,
    /// Packet-loss robustness factor (G.113).
    pub bpl: f64,
}

/// Measurements on which R depends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Expected packets.
    pub expected: u64,
    /// Lost packets.
    pub lost: u64,
    /// Runs of lost packets.
    pub bursts: u64,
    /// Jitter in milliseconds.
    pub jitter_ms: f64,
    /// Round trip in milliseconds, if known.
    pub round_trip_ms: Option<f64>,
}

/// A rating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// The rating factor, 0 to 93.2.
    pub r: f64,
    /// Mean opinion score, 1 to 4.41.
    pub mos: f64,
}

/// Impairment of a codec, by its name in SDP. G.711 without packet-loss concealment (Bpl 4.3).
pub fn impairment(codec: &str) -> Option<Impairment> {
    // G.113, Appendix I. Both factors are of table I.4, which has five rows: G.711 without concealment (0, 4.3) and with it
    // (0, 25.1), G.729A with VAD (11, 19.0), G.723.1 with VAD (15, 16.1) and GSM-EFR (5, 10.0). G.729 of any kind is
    // rated as the first of these that it can be, though without VAD its Ie is 10. Ie of the others is of table I.1 (G.726: 2, 7, 25
    // and 50; G.728: 7; GSM full rate: 20); they have no Bpl there, and get that of a codec without concealment. AMR at
    // 12.2 kbit/s is GSM-EFR. Checked against tables of others that cite the edition of 2024; GSM full rate alone against
    // one that cites none.
    const CODECS: [(&str, f64, f64); 14] = [
        ("PCMU", 0.0, 4.3),
        ("PCMA", 0.0, 4.3),
        ("G726-40", 2.0, 4.3),
        ("G726-32", 7.0, 4.3),
        ("G721", 7.0, 4.3),
        ("G726-24", 25.0, 4.3),
        ("G726-16", 50.0, 4.3),
        ("G728", 7.0, 4.3),
        ("G729", 11.0, 19.0),
        ("G729A", 11.0, 19.0),
        ("G723", 15.0, 16.1),
        ("GSM", 20.0, 4.3),
        ("GSM-EFR", 5.0, 10.0),
        ("AMR", 5.0, 10.0),
    ];
    let codec = codec.strip_prefix("AAL2-").unwrap_or(codec);
    let known = CODECS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(codec));
    known.map(|(_, ie, bpl)| Impairment { ie: *ie, bpl: *bpl })
}

/// The mean opinion score of a rating (G.107, B.4).
pub fn mos(r: f64) -> f64 {
    match r {
        r if r <= 0.0 => 1.0,
        r if r >= 100.0 => 4.5,
        r => (1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6).max(1.0),
    }
}

/// Rating of a stream or an interval; `None` if no packets were expected.
pub fn evaluate(codec: &Impairment, measured: &Measured) -> Option<Quality> {
    if measured.expected == 0 {
        return None;
    }
    let share = measured.lost.min(measured.expected) as f64 / measured.expected as f64;
    let burst_ratio = if measured.bursts == 0 {
        1.0
    } else {
        // Random loss of this share has runs of mean length 1 / (1 - share).
        (measured.lost as f64 / measured.bursts as f64 * (1.0 - share)).max(1.0)
    };
    let ppl = 100.0 * share;
    let ie_eff = codec.ie + (95.0 - codec.ie) * ppl / (ppl / burst_ratio + codec.bpl);
    let delay = measured.round_trip_ms.unwrap_or(0.0) / 2.0 + 2.0 * measured.jitter_ms;
    let id = 0.024 * delay + if delay > 177.3 { 0.11 * (delay - 177.3) } else { 0.0 };
    let r = (93.2 - id - ie_eff).max(0.0);
    Some(Quality { r, mos: mos(r) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quality(codec: &str, lost: u64, bursts: u64) -> Quality {
        let measured = Measured { expected: 1000, lost, bursts, jitter_ms: 0.0, round_trip_ms: None };
        evaluate(&impairment(codec).unwrap(), &measured).unwrap()
    }

    #[test]
    fn known_points_of_the_model() {
        // G.107, table 1: the default R of 93.2 is a MOS of 4.41.
        assert_eq!(quality("pcmu", 0, 0).r, 93.2);
        assert!((quality("PCMA", 0, 0).mos - 4.409).abs() < 0.001);
        // 1 % random loss of G.711 without concealment: Ie,eff = 95 / 5.3.
        assert!((quality("PCMU", 10, 10).r - (93.2 - 95.0 / 5.3)).abs() < 0.02);
        // G.729: Ie = 11.
        assert!((quality("G729", 0, 0).r - 82.2).abs() < 1e-9);
        // The same loss in bursts of 5 is worse.
        assert!(quality("PCMU", 50, 10).r < quality("PCMU", 50, 48).r);
        assert_eq!((mos(-1.0), mos(0.0), mos(100.0), mos(1e9)), (1.0, 1.0, 4.5, 4.5));
        assert_eq!(impairment("opus"), None);
    }

    #[test]
    fn delay_takes_from_it() {
        let with = |round_trip_ms| {
            let measured =
                Measured { expected: 1, round_trip_ms: Some(round_trip_ms), ..Measured::default() };
            evaluate(&impairment("PCMU").unwrap(), &measured).unwrap().r
        };
        assert!((with(200.0) - (93.2 - 2.4)).abs() < 1e-9);
        assert!((with(400.0) - (93.2 - 4.8 - 0.11 * 22.7)).abs() < 1e-9);
    }
}
