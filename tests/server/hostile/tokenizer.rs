//! Long, costly and abandoned prompts leave the streams of others alone.
