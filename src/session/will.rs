//! The will of a client (MQTT 5.0 section 3.1.2.5), kept by its session until it is published or discarded.

use crate::message::{Message, MessageRef};
use crate::time::Time;
use std::time::Duration;

pub struct Will {
    /// Its expiry is set when it is published.
    message: Message,
    pub delay_interval_s: u32,
    message_expiry_interval_s: Option<u32>,
    /// Once its connection has ended without a DISCONNECT that discards it: when to publish it.
    pub due: Time,
}

impl Will {
    pub fn new(message: Message, delay_interval_s: u32, message_expiry_interval_s: Option<u32>) -> Self {
        Self { message, delay_interval_s, message_expiry_interval_s, due: Time::NEVER }
    }

    /// The message to publish. Its lifetime begins now.
    pub fn publish(&self, now: Time) -> Message {
        match self.message_expiry_interval_s {
            None => self.message.clone(),
            Some(s) => Message::from(MessageRef { expires_at: now + Duration::from_secs(s.into()), ..self.message.as_ref() }),
        }
    }
}
