//! Frames: how a lane's messages are cut into bytes, and bytes into messages.
