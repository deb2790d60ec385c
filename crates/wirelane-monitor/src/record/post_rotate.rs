//! `--post-rotate`: a command for every finished file, which the command helper runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use wirelane::sandbox::Identity;
use wirelane_screen::table::printable;

use crate::helper::{Helper, Kind, Listening, Permitted};

/// Counts of the commands.
#[derive(Debug, Default)]
pub struct Outcomes {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Outcomes {
    /// Counts `(done, failed)` so far.
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    fn failed(&self, path: &Path, why: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let path = path.to_string_lossy();
        tracing::warn!("the post-rotate command failed for {}: {why}", printable(&path));
    }
}

/// The helper, as seen by the capturing process.
pub struct PostRotate {
    helper: Option<Helper>,
    listening: Option<Listening>,
    outcomes: Arc<Outcomes>,
}

impl PostRotate {
    /// Starts the helper, as this user, without the environment variables `secrets`. To be called before privileges are
    /// dropped.
    pub fn start(
        command: &str,
        jobs: u16,
        identity: Option<Identity>,
        secrets: &[String],
    ) -> Result<PostRotate> {
        ensure!(!command.trim().is_empty(), "--post-rotate needs a command");
        let permitted =
            Permitted { jobs: jobs.into(), shell: Some(command.to_owned()), ..Permitted::default() };
        let helper = Helper::start(&permitted, identity, secrets)?;
        Ok(PostRotate { helper: Some(helper), listening: None, outcomes: Arc::default() })
    }

    /// Counts of the commands.
    pub fn outcomes(&self) -> Arc<Outcomes> {
        Arc::clone(&self.outcomes)
    }

    /// Starts the thread that counts, and returns a function that passes a file to the helper without blocking. The
    /// helper's input ends when the function is dropped. To be called after privileges are dropped: existing threads
    /// keep theirs.
    pub fn listen(&mut self) -> Result<impl FnMut(&Path) + Send + 'static> {
        let helper = self.helper.take().context("the helper is listened to once")?;
        let counts = Arc::clone(&self.outcomes);
        let (mut requests, listening) = helper.listen(move |answer| match answer.kind {
            Kind::Done => {
                counts.done.fetch_add(1, Ordering::Relaxed);
            }
            _ => counts.failed(Path::new(&answer.of), &answer.text),
        })?;
        self.listening = Some(listening);
        let outcomes = Arc::clone(&self.outcomes);
        // The helper has the same working directory, but a path that begins with a dash would be parsed as an option.
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Ok(move |path: &Path| {
            let path = here.join(path);
            if let Err(error) = requests.finished(&path) {
                outcomes.failed(&path, &format!("the helper that runs it does not take it: {error}"));
            }
        })
    }

    /// Waits for the last command, after the sender is dropped. Returns `(done, failed)`.
    pub fn end(self) -> Result<(u64, u64)> {
        drop(self.helper);
        self.listening.map_or(Ok(()), Listening::end)?;
        Ok(self.outcomes.now())
    }
}
