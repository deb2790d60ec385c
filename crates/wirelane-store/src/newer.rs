//! Stores of newer versions: they are neither read nor written to, because columns may have another meaning there.

use std::fs::File;
use std::path::Path;

use parquet::file::metadata::FileMetaData;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::paths::Stored;
use crate::query::guarded::guarded;
use crate::tables::{SCHEMA, VERSION};
use crate::{Error, Result};

/// Refuses a table whose newest file a newer version has written. That version writes the newest files, and an older one
/// refuses to write beside them, so no other file is opened.
///
/// # Errors
/// [`Error::Newer`].
pub(crate) fn refuse<'a>(files: impl Iterator<Item = &'a Stored>) -> Result<()> {
    // Names begin with the time of their making.
    let Some(newest) = files.filter(|file| file.ours).max_by_key(|file| (file.hour, &file.path)) else {
        return Ok(());
    };
    refuse_file(&newest.path)
}

/// Refuses a file that a newer version has written.
///
/// # Errors
/// [`Error::Newer`].
pub(crate) fn refuse_file(path: &Path) -> Result<()> {
    // The decoder may panic on a damaged file.
    match guarded(|| version(path)).ok().flatten() {
        Some((theirs, by)) if theirs > SCHEMA as u32 => {
            Err(Error::Newer { path: path.to_owned(), by, theirs, ours: SCHEMA as u32 })
        }
        _ => Ok(()),
    }
}

/// The schema version of a file and who has written it; `None`: the file is damaged, gone, or has no version. A query names
/// damaged files itself.
fn version(path: &Path) -> Option<(u32, String)> {
    let reader = SerializedFileReader::new(File::open(path).ok()?).ok()?;
    version_of(reader.metadata().file_metadata())
}

/// The same, of the metadata of a file.
pub(crate) fn version_of(meta: &FileMetaData) -> Option<(u32, String)> {
    let pair = meta.key_value_metadata()?.iter().find(|pair| pair.key == VERSION)?;
    let by = meta.created_by().unwrap_or("unknown").escape_debug().to_string();
    Some((pair.value.as_ref()?.parse().ok()?, by))
}
