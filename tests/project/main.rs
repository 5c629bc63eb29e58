//! The project itself: its modules, files and dependencies.
//!
//! - `architecture`: imports and sizes, as in ARCHITECTURE.md
//! - `dependencies`: licences and sources
//! - `library`: the crate of docs/data.md compiles
//! - `messages`: what is generated follows from its file

mod architecture;
mod dependencies;
mod library;
mod messages;
