//! MAC addresses on the command line and in messages.

use std::fmt;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<MacAddr, String> {
        let wrong = || format!("'{text}' is not a MAC address; write it as in 02:57:4c:00:00:02");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let is_byte = |part: &&str| {
                matches!(part.len(), 1 | 2) && part.bytes().all(|digit| digit.is_ascii_hexdigit())
            };
            let part = parts.next().filter(is_byte).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(MacAddr(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mac = MacAddr([0x02, 0, 0xab, 0xcd, 0xef, 0x09]);
        assert_eq!(mac.to_string(), "02:00:ab:cd:ef:09");
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    #[test]
    fn refuses_what_is_none() {
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00:00:00:00:0g",
            "020000000000",
            "+2:0:0:0:0:0",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}
