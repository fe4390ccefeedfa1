/** Messages, frames and errors of the wire protocol (docs/reference/wire.md). */
package io.sluice.client.wire;
