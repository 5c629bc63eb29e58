//! The project itself: its modules, files and dependencies.
//!
//! - `architecture`: imports and sizes, as in ARCHITECTURE.md
//! - `dependencies`: licences and sources

mod architecture;
mod dependencies;
