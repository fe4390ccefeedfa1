package io.sluice.client.wire;

import java.io.IOException;

/**
 * Receives what arrives on a connection. Called by the thread that drives the connection; must not
 * send.
 */
public interface FrameHandler {
    /** Called for a message without payload. */
    void onMessage(Message message) throws IOException;

    /** Called for a buffer of a channel; the handler owns the chunk from now on. */
    void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException;

    /** Called for the end-of-partition event of a channel. */
    void onEnd(Message.BufferResponse response, Message.EndOfPartition event) throws IOException;
}
