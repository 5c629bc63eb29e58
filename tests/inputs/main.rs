//! The inputs of a run: configurations, and batches from data of every kind.

mod arrays;
mod classification;
mod config;
mod data;
mod image_folder;
mod table;
