//! WebSocket frames that claim, or bring, more than they may.
