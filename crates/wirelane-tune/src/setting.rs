//! The settings that tuning changes, each with a value that can be stored, compared and restored.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One setting of a device. Its value is text in a canonical form, so that equal settings have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "setting", rename_all = "snake_case")]
pub enum Setting {
    /// Numbers of channels (ethtool -L): `rx 0 tx 0 combined 4`.
    Channels,
    /// Descriptors of each RX queue (ethtool -G): `4096`.
    RxRing,
    /// A feature (ethtool -K): `on` or `off`.
    Offload {
        /// The kernel's name of the feature: `rx-gro`.
        name: String,
    },
    /// The RSS table (ethtool -X): `even 4` (entry i is queue i modulo 4), or its entries with commas.
    RssTable,
    /// The RSS key, in hexadecimal.
    RssKey,
    /// The CPUs that an interrupt is allowed on: a list of CPUs.
    IrqAffinity {
        /// The interrupt.
        irq: u32,
    },
    /// Whether NAPI polls in kernel threads (`/sys/class/net/DEV/threaded`): `0` or `1`.
    Threaded,
    /// Polling of the NAPI instance of a queue (Linux 6.17): `off`, `on` or `busy-poll`.
    QueueThread {
        /// The RX queue.
        queue: u32,
    },
    /// The CPUs that the polling thread of a queue is allowed on: a list of CPUs.
    ThreadAffinity {
        /// The RX queue.
        queue: u32,
    },
    /// The CPUs to which the stack steers packets of a queue (RPS): a list of CPUs.
    Rps {
        /// The RX queue.
        queue: u32,
    },
    /// Number of empty polls for which interrupts stay masked (`napi_defer_hard_irqs`).
    DeferHardIrqs,
    /// Nanoseconds after which held packets are flushed (`gro_flush_timeout`).
    GroFlushTimeout,
}

impl Setting {
    /// The right or feature that changing the setting needs.
    pub fn needs(&self) -> &'static str {
        match self {
            Setting::IrqAffinity { .. } => "root (it is a file of root's in /proc/irq)",
            Setting::ThreadAffinity { .. } => "CAP_SYS_NICE",
            _ => "CAP_NET_ADMIN",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Channels => f.write_str("channels"),
            Setting::RxRing => f.write_str("RX ring"),
            Setting::Offload { name } => write!(f, "offload {name}"),
            Setting::RssTable => f.write_str("RSS table"),
            Setting::RssKey => f.write_str("RSS key"),
            Setting::IrqAffinity { irq } => write!(f, "CPU of IRQ {irq}"),
            Setting::Threaded => f.write_str("threaded NAPI"),
            Setting::QueueThread { queue } => write!(f, "polling thread of queue {queue}"),
            Setting::ThreadAffinity { queue } => write!(f, "CPU of the polling thread of queue {queue}"),
            Setting::Rps { queue } => write!(f, "RPS of queue {queue}"),
            Setting::DeferHardIrqs => f.write_str("napi_defer_hard_irqs"),
            Setting::GroFlushTimeout => f.write_str("gro_flush_timeout"),
        }
    }
}

/// Formats a table: `even N` if entry i is i modulo N.
pub fn table_text(table: &[u32]) -> String {
    let queues = table.iter().max().map_or(1, |last| last + 1);
    if table.iter().enumerate().all(|(entry, queue)| entry as u32 % queues == *queue) {
        return format!("even {queues}");
    }
    table.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Parses a table of `entries` entries; `None` if the text is malformed.
pub fn table_of(text: &str, entries: usize) -> Option<Vec<u32>> {
    if let Some(queues) = text.strip_prefix("even ") {
        let queues: u32 = queues.parse().ok().filter(|queues| *queues > 0)?;
        return Some((0..entries as u32).map(|entry| entry % queues).collect());
    }
    text.split(',').map(|queue| queue.parse().ok()).collect()
}

/// Formats bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses bytes in hexadecimal; `None` if the text is malformed.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_keys_come_back() {
        for table in [vec![0, 1, 2, 0, 1, 2, 0, 1], vec![0; 8], vec![3, 3, 1, 0, 0, 0, 0, 0]] {
            assert_eq!(table_of(&table_text(&table), table.len()), Some(table));
        }
        assert_eq!(table_text(&[0, 1, 2, 3, 0, 1]), "even 4");
        assert_eq!(table_of("even 0", 8), None);
        assert_eq!(table_of("x", 8), None);
        assert_eq!(unhex(&hex(&[0x6d, 0x5a, 0])), Some(vec![0x6d, 0x5a, 0]));
        assert_eq!((unhex("6"), unhex("6g")), (None, None));
    }
}
