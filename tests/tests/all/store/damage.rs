//! Damage to files of a store.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

/// The Parquet file with integers of 80 bits in the copy of its schema (`ARROW:schema`, an Arrow IPC message in Base64).
pub fn with_wide_integers(file: &[u8]) -> Vec<u8> {
    let key = b"ARROW:schema";
    let at = file.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len();
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    // The value's length in Thrift is between the key and the value, whose first bytes are the message's marker.
    let start = at + file[at..].windows(5).position(|bytes| bytes == b"/////").unwrap();
    let end = start + file[start..].iter().position(|byte| !is_base64(byte)).unwrap();
    // A letter of the next field may follow.
    let end = start + (end - start) / 4 * 4;
    let mut schema = BASE64.decode(&file[start..end]).unwrap();
    for at in 0..schema.len() - 4 {
        if schema[at..at + 4] == [64, 0, 0, 0] {
            schema[at] = 80;
        }
    }
    [&file[..start], BASE64.encode(schema).as_bytes(), &file[end..]].concat()
}
