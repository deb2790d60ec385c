//! `wirelane query --at`: the ready-made questions to a place to which stores are shipped; and questions to a bucket.

use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "store")]
use wirelane_store::query::{AskSettings, Asker};

use crate::values::seconds;

/// Heading of the help.
const AT: &str = "Past one machine: where stores are shipped to";

/// The place, and how it is asked.
#[derive(Debug, clap::Args)]
pub struct AtArgs {
    /// Ask the server to which 'wirelane ship' ships, about all probes, in place of --store:
    /// clickhouse+https://USER@HOST:PORT/DATABASE, or clickhouse+http://. Ready-made queries only
    #[arg(long, value_name = "TARGET", global = true, help_heading = AT)]
    pub at: Option<String>,

    /// File with the password, or with the secret key of a bucket, which others must not be able to read
    #[arg(long, value_name = "FILE", global = true, help_heading = AT)]
    password_file: Option<PathBuf>,

    /// File with certificates (PEM) of the authorities to trust. Default: the public ones
    #[arg(long, value_name = "FILE", global = true, help_heading = AT)]
    ca: Option<PathBuf>,

    /// Limit of the request
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60s", global = true, help_heading = AT)]
    patience: Duration,
}

#[cfg(feature = "store")]
impl AtArgs {
    /// Opens a store: a folder, or a bucket.
    ///
    /// # Errors
    /// If it is not one, or cannot be opened.
    pub fn asker(&self, settings: AskSettings) -> anyhow::Result<Asker> {
        match settings.folder.to_str().filter(|text| text.starts_with("s3://")) {
            Some(text) => {
                let bucket = self.bucket(text)?;
                Ok(Asker::remote(settings, bucket))
            }
            None => Ok(Asker::open(settings)?),
        }
    }
}

#[cfg(all(feature = "store", not(feature = "ship")))]
mod built {
    use wirelane_store::query::{Form, Question, Shipped, Sink};

    impl super::AtArgs {
        /// Never answers.
        pub fn ask(
            &self,
            _at: &str,
            _question: &Question,
            _rows: Shipped,
            _limit: u64,
            _form: Form,
            _sink: &mut Sink<'_>,
        ) -> anyhow::Result<()> {
            anyhow::bail!(
                "this program was built without shipping (cargo: feature 'ship' of the crate wirelane-cli)"
            )
        }
    }
}

#[cfg(all(feature = "store", not(feature = "s3")))]
mod bucket {
    impl super::AtArgs {
        /// Never opens one.
        pub(super) fn bucket(&self, _text: &str) -> anyhow::Result<wirelane_store::query::Remote> {
            anyhow::bail!("this program was built without S3 (cargo: feature 's3' of the crate wirelane-cli)")
        }
    }
}

#[cfg(feature = "s3")]
mod bucket {
    use anyhow::Result;
    use wirelane::Error;
    use wirelane_ship::{S3Target, Secrets, remote};
    use wirelane_store::query::Remote;

    impl super::AtArgs {
        /// Opens a store in a bucket.
        ///
        /// # Errors
        /// A usage error if the target is not valid; without credentials, or if the host cannot be resolved.
        pub(super) fn bucket(&self, text: &str) -> Result<Remote> {
            let target = S3Target::parse(text)
                .map_err(|error| Error::BadOption { option: "--store", reason: error.to_string() })?;
            let secrets = Secrets::read(self.password_file.as_deref(), self.ca.as_deref())?;
            Ok(remote(&target, &secrets, self.patience)?)
        }
    }
}

#[cfg(feature = "ship")]
mod built {
    use anyhow::{Context as _, Result};
    use wirelane::Error;
    use wirelane_ship::{Client, Secrets, Target};
    use wirelane_store::query::{Form, Question, Shipped, Sink, show};

    impl super::AtArgs {
        /// Asks the server. `rows`: which rows, without the name of the database.
        ///
        /// # Errors
        /// A usage error if the target is not valid; if the server cannot be asked; the error of `sink`.
        pub fn ask(
            &self,
            at: &str,
            question: &Question,
            rows: Shipped,
            limit: u64,
            form: Form,
            sink: &mut Sink<'_>,
        ) -> Result<()> {
            let target = Target::parse(at)
                .map_err(|error| Error::BadOption { option: "--at", reason: error.to_string() })?;
            let rows = Shipped { database: target.database.clone(), ..rows };
            let secrets = Secrets::read(self.password_file.as_deref(), self.ca.as_deref())?;
            let client = Client::new(target, &secrets, self.patience)?;
            let answer = client.ask(&question.clickhouse(&rows, limit));
            let answer = answer.with_context(|| format!("asking {}", client.target()))?;
            Ok(show(question, limit, answer, form, sink)?)
        }
    }
}
