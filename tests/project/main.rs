//! The project itself: its modules, files and dependencies.
//!
//! - `architecture`: imports and sizes, as in ARCHITECTURE.md
//! - `dependencies`: licences and sources
//! - `library`: the crate of docs/data.md compiles

mod architecture;
mod dependencies;
mod library;
