//! The tables of a database, and the migrations from older formats. A format without a migration is refused.

/// The version of the table layout; every change of it increments this.
pub(super) const FORMAT: i64 = 3;
/// The version of a new file.
pub(super) const NO_FORMAT: i64 = 0;

/// The tables of a database.
#[derive(Debug, Clone)]
pub struct Schema {
    /// SQL that creates the tables.
    pub tables: String,
    /// Migrations of older formats, in their order.
    pub migrations: &'static [Migration],
}

impl Schema {
    /// The oldest format that can be read.
    pub(super) fn oldest_format(&self) -> i64 {
        self.migrations.iter().map(|migration| migration.from_format).min().unwrap_or(FORMAT)
    }

    /// The SQL that migrates a file of this format.
    pub(super) fn migrations_of(&self, format: i64) -> String {
        let needed = |migration: &&Migration| format != NO_FORMAT && migration.from_format >= format;
        self.migrations.iter().filter(needed).map(|migration| migration.sql).collect()
    }
}

/// The migration of a file to the next format.
#[derive(Debug)]
pub struct Migration {
    /// The format that it migrates.
    pub from_format: i64,
    /// The SQL.
    pub sql: &'static str,
}
